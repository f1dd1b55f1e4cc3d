package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway/admin"
)

func newConns(e *env) *cobra.Command {
	var q admin.ConnQuery
	var noHeader bool
	c := &cobra.Command{
		Use:   "conns",
		Short: "List connections, how each is carried, and why not",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := e.client(defaultConfig().Admin)
			defer c.Close()
			list, err := c.Conns(cmd.Context(), q)
			if err != nil {
				return err
			}
			if e.json {
				return e.printJSON(list)
			}
			return table(e.stdout, connRows(list.Conns, q.Closed || q.All, noHeader))
		},
	}
	c.Flags().BoolVar(&q.Closed, "closed", false, "list the last carried connections that ended")
	c.Flags().BoolVar(&q.All, "all", false, "add the last connections that stayed native")
	c.Flags().BoolVar(&noHeader, "no-header", false, "print no header line")
	return withSocket(e, noun(e, c))
}

// connRows makes the table; ended adds the column that says how each ended.
func connRows(conns []admin.ConnInfo, ended, noHeader bool) [][]string {
	rows := [][]string{{"ID", "PROTO", "SIDE", "LOCAL", "REMOTE", "STATE", "CARRIER", "REASON", "TX", "RX", "AGE"}}
	if ended {
		rows[0] = append(rows[0], "END")
	}
	if noHeader {
		rows = nil
	}
	for _, c := range conns {
		row := []string{
			strconv.FormatUint(c.ID, 10), c.Proto, string(c.Side), c.Local.String(), c.Remote.String(), c.State,
			string(c.Carrier), reasonCell(c), strconv.FormatUint(c.TxBytes, 10), strconv.FormatUint(c.RxBytes, 10), age(c.AgeSeconds),
		}
		if ended {
			row = append(row, string(c.End))
		}
		rows = append(rows, row)
	}
	return rows
}

// reasonCell is the reason with the side that decided, in one field, or else why
// the connection has left its first carrier.
func reasonCell(c admin.ConnInfo) string {
	if c.Reason == "" && c.Demoted != "" {
		return fmt.Sprintf("demoted(%s)", c.Demoted)
	}
	if c.Reason == "" || c.DecidedBy == "" {
		return c.Reason
	}
	return fmt.Sprintf("%s(%s)", c.Reason, c.DecidedBy)
}
