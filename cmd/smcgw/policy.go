package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/report"
)

func newPolicy(e *env) *cobra.Command {
	var services bool
	c := &cobra.Command{
		Use:   "policy",
		Short: "Show the rules and what they decided",
		Long: `Policy lists the rules in force with the share of their connections that is carried
now, how many they selected (SELECTED; with the mode observe: would have) and how many
they left native (PASSED), and of the connections seen in the mode observe the bytes
and the part of them that was bulk. SLOWER is the part of the connections of a rule that
took longer than 95% of those that the rollout left native, where guard.slower compares
them. With --services it lists those connections by
service. It predicts nothing: "smcgw bench --peer" measures what carrying gains.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := e.policy(cmd)
			if err != nil {
				return err
			}
			if e.json {
				return e.printJSON(p)
			}
			if services {
				return e.list(screen.Listing{Rows: observedRows(p.Observed), Spare: []string{"RATE"}})
			}
			return e.list(screen.Listing{Rows: ruleRows(p.Rules)})
		},
	}
	c.Flags().BoolVar(&services, "services", false, "list the services that connections were seen of in the mode observe")
	return withSocket(e, noun(e, withList(e, c)))
}

// policy queries the daemon.
func (e *env) policy(cmd *cobra.Command) (report.PolicyReport, error) {
	c := e.reach()
	defer c.Close()
	return c.Policy(cmd.Context())
}

func ruleRows(rules []report.RuleReport) [][]string {
	rows := [][]string{{"RULE", "ACTION", "PERCENT", "SELECTED", "PROMOTED", "PASSED", "BYTES", "BULK", "SLOWER"}}
	for i := range rules {
		r := &rules[i]
		row := []string{r.Name, string(r.Action), "", strconv.FormatUint(r.Selected, 10), strconv.FormatUint(r.Promoted, 10), strconv.FormatUint(r.Passed, 10), "", "", ""}
		if r.Percent != nil {
			row[2] = strconv.FormatFloat(*r.Percent, 'f', -1, 64) + "%"
		}
		if r.Bytes > 0 {
			row[6], row[7] = screen.Size(r.Bytes), screen.Part(r.Bulk, r.Bytes)
		}
		if r.Compared != nil {
			row[8] = screen.Part(r.Compared.Slower, r.Compared.Offered)
		}
		rows = append(rows, row)
	}
	return rows
}

func observedRows(list []report.ObservedService) [][]string {
	rows := [][]string{{"SIDE", "PORT", "RULE", "CARRIES", "HOSTS", "CONNS", "BYTES", "BULK", "RATE"}}
	for i := range list {
		o := &list[i]
		total := o.Bytes.Tx + o.Bytes.Rx
		row := []string{
			string(o.Side), strconv.Itoa(int(o.Port)), o.Rule, yes(o.Carries), hostsCell(o), strconv.FormatUint(o.Connections, 10),
			screen.Size(total), screen.Part(o.BulkBytes, total), "",
		}
		if o.BulkBytesPerSecond > 0 {
			row[8] = screen.Size(uint64(o.BulkBytesPerSecond)) + "/s"
		}
		rows = append(rows, row)
	}
	return rows
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// hostsCell shows the only host, or the number of hosts.
func hostsCell(o *report.ObservedService) string {
	switch {
	case len(o.Hosts) == 1:
		return o.Hosts[0].String()
	case o.MoreHosts:
		return strconv.Itoa(len(o.Hosts)) + "+"
	default:
		return strconv.Itoa(len(o.Hosts))
	}
}
