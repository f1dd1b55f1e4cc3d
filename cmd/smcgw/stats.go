package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
)

func newStats(e *env) *cobra.Command {
	var since string
	c := &cobra.Command{
		Use:   "stats",
		Short: "Show flows, bytes and datagrams by protocol and carrier",
		Long: `Stats shows what the gateway has counted since it started: flows, bytes and
datagrams by protocol and carrier, what became of datagrams, and what stayed
native. With --since it waits for that time and shows what happened meanwhile;
numbers of the moment, such as the flows there are, are those of the end. Nothing
is ever reset, so several users can measure at once.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var span time.Duration
			if since != "boot" {
				if span, _ = time.ParseDuration(since); span <= 0 {
					return usagef("--since %s: not a time to wait for, such as 5s", since)
				}
			}
			c := e.reach()
			defer c.Close()
			st, err := statsSince(cmd.Context(), c, span)
			if err != nil {
				return err
			}
			if e.json {
				return e.printJSON(st)
			}
			return e.showStats(st, span > 0)
		},
	}
	c.Flags().StringVar(&since, "since", "boot", "measure for this time, such as 5s, instead of since the start")
	return withSocket(e, noun(e, withList(e, c)))
}

// statsSince asks once, or twice with a pause in between.
func statsSince(ctx context.Context, c *admin.Client, span time.Duration) (report.Stats, error) {
	st, err := c.Stats(ctx)
	if err != nil || span <= 0 {
		return st, err
	}
	if err := pause(ctx, span); err != nil {
		return report.Stats{}, fmt.Errorf("measure: %w", err)
	}
	later, err := c.Stats(ctx)
	if err != nil {
		return report.Stats{}, err
	}
	diff, err := later.Since(st)
	if err != nil {
		return report.Stats{}, fmt.Errorf("measure: %w", err)
	}
	return diff, nil
}

func (e *env) showStats(st report.Stats, span bool) error {
	head, when := "since the start, "+age(st.Seconds)+" ago", "since the start"
	if span {
		head, when = "in the last "+age(st.Seconds), "began"
	}
	if _, err := fmt.Fprintln(e.stdout, head); err != nil {
		return printed(err)
	}
	if err := e.list(screen.Listing{Rows: statsRows(st)}); err != nil {
		return err
	}
	_, err := fmt.Fprint(e.stdout, statsLines(e.screen(e.stdout), st, when))
	return printed(err)
}

// statsRows makes the table, with a line for each protocol and carrier.
func statsRows(st report.Stats) [][]string {
	rows := [][]string{{"PROTO", "CARRIER", "FLOWS", "BEGAN", "SENT", "RECEIVED", "DGRAMS-SENT", "DGRAMS-RECEIVED"}}
	for _, p := range slices.Sorted(maps.Keys(st.Protocols)) {
		ps := st.Protocols[p]
		for _, c := range slices.Sorted(maps.Keys(ps.Flows)) {
			flows, bytes := ps.Flows[c], ps.Bytes[c]
			row := []string{
				string(p), string(c), strconv.Itoa(flows.Now), strconv.FormatUint(flows.Total, 10), screen.Size(bytes.Tx), screen.Size(bytes.Rx), "", "",
			}
			if p == report.ProtoUDP {
				row[6] = strconv.FormatUint(st.Datagrams.Sent[c], 10)
				row[7] = strconv.FormatUint(st.Datagrams.Received[c], 10)
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// statsLines are the lines below the table.
func statsLines(s *screen.Screen, st report.Stats, when string) string {
	var b strings.Builder
	line := func(name, format string, args ...any) { b.WriteString(s.Field(name, fmt.Sprintf(format, args...))) }
	for _, p := range slices.Sorted(maps.Keys(st.Protocols)) {
		line("native", "%s: %s", p, listed(st.Protocols[p].Native))
	}
	inProcessLine(line, st.InProcess, when)
	d := st.Datagrams
	line("datagrams", "%d delivered, %d given back to the network, dropped: %s", d.Delivered, d.Returned, listed(d.Dropped))
	r := d.Resolution
	line("resolution", "%d queries, %d answers, %d refusals; asked %d times, answered %d, refused %d; %d ignored",
		r.Queries, r.Answers, r.Refusals, r.Asked, r.Answered, r.Refused, r.Ignored)
	return b.String()
}

// listed lists the counters that are not 0.
func listed[K ~string](counts map[K]uint64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[name]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", name, n))
		}
	}
	if parts == nil {
		return "none"
	}
	return strings.Join(parts, ", ")
}
