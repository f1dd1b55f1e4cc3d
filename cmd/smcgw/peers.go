package main

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/report"
)

func newPeers(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "peers",
		Short: "List what is known of other hosts",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := e.reach()
			defer c.Close()
			list, err := c.Peers(cmd.Context())
			if err != nil {
				return err
			}
			if e.json {
				return e.printJSON(list)
			}
			return e.list(screen.Listing{Rows: peerRows(list.Peers), Spare: []string{"BEGUN", "MEMORY", "FLOWS"}})
		},
	}
	c = withSocket(e, noun(e, withList(e, c)))
	c.AddCommand(newPeersFlush(e))
	return c
}

func newPeersFlush(e *env) *cobra.Command {
	return withSocket(e, withJSON(e, &cobra.Command{
		Use:   "flush",
		Short: "Forget refusals: peers are asked again",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := e.reach()
			defer c.Close()
			return e.answered(c.FlushPeers(cmd.Context()))
		},
	}))
}

func peerRows(peers []report.PeerInfo) [][]string {
	rows := [][]string{{"ADDRESS", "PORT", "STATE", "REASON", "EXPIRES", "VERSION", "MODE", "FLOWS", "BEGUN", "MEMORY", "CARRIERS"}}
	for _, p := range peers {
		row := []string{p.Address.String(), "", string(p.State), p.Reason, "", p.Version, string(p.Mode), strconv.Itoa(p.Flows), strconv.Itoa(p.Use.Begun), memoryCell(p), carrierCell(p)}
		if p.Port != 0 {
			row[1] = strconv.Itoa(int(p.Port))
		}
		if p.ExpiresSeconds > 0 {
			row[4] = age(p.ExpiresSeconds)
		}
		rows = append(rows, row)
	}
	return rows
}

// memoryCell shows the memory registered for the peer.
func memoryCell(p report.PeerInfo) string { return screen.Size(p.Use.MemoryBytes) }

// carrierCell lists proven carriers, and failed ones with a minus.
func carrierCell(p report.PeerInfo) string {
	var cells []string
	for _, c := range p.Carriers {
		cells = append(cells, string(c))
	}
	for _, c := range p.CarriersFailed {
		cells = append(cells, "-"+string(c))
	}
	return strings.Join(cells, ",")
}
