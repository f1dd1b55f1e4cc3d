package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/admin"
)

// printServices prints what rules with action auto have learned.
func (e *env) printServices(cmd *cobra.Command, c *admin.Client) error {
	list, err := c.Services(cmd.Context())
	if err != nil {
		return err
	}
	if e.json {
		return e.printJSON(list)
	}
	return e.list(screen.Listing{Rows: serviceRows(list.Services), Prose: true})
}

func serviceRows(services []admin.ServiceInfo) [][]string {
	rows := [][]string{{"ADDRESS", "PORT", "VERDICT", "REASON", "EXPIRES", "NATIVE", "SCORE", "WHY"}}
	for i := range services {
		s := &services[i]
		row := []string{
			s.Address.String(), strconv.Itoa(int(s.Port)), string(s.Verdict), s.Reason, "",
			strconv.FormatUint(s.Native, 10), fmt.Sprintf("%.2g", s.Score), s.Why,
		}
		if s.ExpiresSeconds > 0 {
			row[4] = age(s.ExpiresSeconds)
		}
		rows = append(rows, row)
	}
	return rows
}
