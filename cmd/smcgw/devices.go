package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/report"
)

func newDevices(e *env) *cobra.Command {
	var counters, details bool
	c := &cobra.Command{
		Use:   "devices",
		Short: "List the RDMA devices of the gateway and the adapters of the host",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := e.reach()
			defer c.Close()
			list, err := c.Devices(cmd.Context())
			if err != nil {
				return err
			}
			switch {
			case e.json:
				return e.printJSON(list)
			case counters:
				return e.list(screen.Listing{Rows: counterRows(list.Devices)})
			case details:
				return e.list(screen.Listing{Rows: adapterDetails(&list.RDMA)})
			}
			if err := e.list(screen.Listing{Rows: deviceRows(list.Devices)}); err != nil {
				return err
			}
			if err := e.printNotes(list.Devices); err != nil {
				return err
			}
			return e.printAdapters(&list.RDMA)
		},
	}
	c.Flags().BoolVar(&details, "adapters", false, "print all that the kernel tells of RDMA adapters instead, one fact per line")
	c.Flags().BoolVar(&counters, "counters", false, "print limits and counters instead, one per line")
	return withSocket(e, noun(e, withList(e, c)))
}

func deviceRows(devices []report.DeviceInfo) [][]string {
	rows := [][]string{{"DEVICE", "CARRIER", "STATE", "UDP", "MTU", "QPS", "GIDS"}}
	for i := range devices {
		d := &devices[i]
		row := []string{d.Name, string(d.Carrier), string(d.State), "", "", strconv.FormatUint(d.Use["qps"], 10), ""}
		if d.UDPPort != 0 {
			row[3] = strconv.Itoa(int(d.UDPPort))
		}
		if d.MTU != 0 {
			row[4] = strconv.Itoa(d.MTU)
		}
		var gids []string
		for _, g := range d.GIDs {
			gids = append(gids, g.Unmap().String())
		}
		row[6] = strings.Join(gids, ",")
		rows = append(rows, row)
	}
	return rows
}

// counterRows lists every number of every device.
func counterRows(devices []report.DeviceInfo) [][]string {
	rows := [][]string{{"DEVICE", "NAME", "VALUE"}}
	for i := range devices {
		d := &devices[i]
		add := func(name string, v uint64) { rows = append(rows, []string{d.Name, name, strconv.FormatUint(v, 10)}) }
		if d.Limits != (report.DeviceLimits{}) {
			add("limit.vectors", uint64(d.Limits.Vectors))
			add("limit.max_qp", uint64(d.Limits.MaxQP))
			add("limit.max_qp_wr", uint64(d.Limits.MaxQPWR))
			add("limit.max_mr", uint64(d.Limits.MaxMR))
			add("limit.max_mr_size", d.Limits.MaxMRSize)
			add("limit.max_msg_size", d.Limits.MaxMsgSize)
		}
		for _, name := range slices.Sorted(maps.Keys(d.Use)) {
			add("use."+name, d.Use[name])
		}
		for _, name := range slices.Sorted(maps.Keys(d.Counters)) {
			add(name, d.Counters[name])
		}
	}
	return rows
}

// printNotes explains, below the table, why a device is not active or not as configured.
func (e *env) printNotes(devices []report.DeviceInfo) error {
	for i := range devices {
		if d := &devices[i]; d.Error != "" || d.Note != "" {
			if _, err := fmt.Fprint(e.stdout, e.screen(e.stdout).Paragraph(d.Name+": "+cmp.Or(d.Error, d.Note))); err != nil {
				return printed(err)
			}
		}
	}
	return nil
}
