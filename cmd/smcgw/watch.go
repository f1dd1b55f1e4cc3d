package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/report"
)

// errEnough ends a stream after enough events.
var errEnough = errors.New("enough events")

func newWatch(e *env) *cobra.Command {
	var filter filterFlags
	var count int
	var limit time.Duration
	c := &cobra.Command{
		Use:   "watch",
		Short: "Show what happens to connections, as it happens",
		Long: `Watch prints a line when a connection begins to be carried, leaves its carrier for the
relay (demoted), is promoted, ends, or stays native, with its reason, until it is
interrupted. It costs the gateway nothing while no client watches. Of UDP it shows ends and
native ones; of connections in process each of both ends. When another gateway takes
over it goes on with that one, whose IDs begin anew.

With --json it prints one JSON document a line.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := filter.parse()
			switch {
			case err != nil:
				return err
			case count < 0 || limit < 0:
				return usagef("--count and --for: a number or time below 0")
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			if limit > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, limit)
				defer cancel()
			}
			c := e.reach()
			defer c.Close()
			return ignoreEnough(c.Watch(ctx, f, nil, counted(count, e.showEvent())))
		},
	}
	c.Flags().IntVarP(&count, "count", "n", 0, "end after this many events")
	c.Flags().DurationVar(&limit, "for", 0, "end after this time, such as 10s")
	filter.register(c)
	return withSocket(e, noun(e, withList(e, c)))
}

// interruptible returns a context that ^C and SIGTERM end; a second signal ends the program.
func interruptible(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, cancel)
	return ctx, cancel
}

// counted ends a stream after n events; 0: it does not.
func counted(n int, fn func(report.Event) error) func(report.Event) error {
	left := n
	return func(ev report.Event) error {
		err := fn(ev)
		if left--; err == nil && n > 0 && left == 0 {
			return errEnough
		}
		return err
	}
}

func ignoreEnough(err error) error {
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// eventColumn is a column of events. Events come one by one, so its width is fixed.
type eventColumn struct {
	name  string
	width int
	cell  func(ev *report.Event, c *report.ConnInfo) string
}

func eventColumns() []eventColumn {
	return []eventColumn{
		{"TIME", 12, func(ev *report.Event, _ *report.ConnInfo) string { return eventTime(ev) }},
		{"EVENT", 8, func(ev *report.Event, _ *report.ConnInfo) string { return string(ev.Event) }},
		{"ID", 13, func(_ *report.Event, c *report.ConnInfo) string { return strconv.FormatUint(c.ID, 10) }},
		{"SIDE", 6, func(_ *report.Event, c *report.ConnInfo) string { return string(c.Side) }},
		{"LOCAL", 21, func(_ *report.Event, c *report.ConnInfo) string { return c.Local.String() }},
		{"REMOTE", 21, func(_ *report.Event, c *report.ConnInfo) string { return c.Remote.String() }},
		{"CARRIER", 9, func(_ *report.Event, c *report.ConnInfo) string { return howCell(c) }},
		{"REASON", 24, func(_ *report.Event, c *report.ConnInfo) string { return reasonCell(c) }},
		{"TX", 8, func(_ *report.Event, c *report.ConnInfo) string { return sizeCell(c, c.TxBytes) }},
		{"RX", 8, func(_ *report.Event, c *report.ConnInfo) string { return sizeCell(c, c.RxBytes) }},
	}
}

// columnsWithin returns the columns that fit on a terminal, all for 0.
func columnsWithin(terminal int) []eventColumn {
	columns := eventColumns()
	for _, spare := range []string{"RX", "TX", "ID", "SIDE", "LOCAL"} {
		width := -1
		for _, c := range columns {
			width += c.width + 1
		}
		if terminal == 0 || width <= terminal {
			break
		}
		columns = slices.DeleteFunc(columns, func(c eventColumn) bool { return c.name == spare })
	}
	return columns
}

// showEvent returns a function that prints events, with a header before the first.
func (e *env) showEvent() func(report.Event) error {
	header, width := e.noHeader, 0
	if s := e.screen(e.stdout); s.Terminal() && e.output != outputWide {
		width = s.Width()
	}
	columns := columnsWithin(width)
	return func(ev report.Event) error {
		if e.json {
			return e.printJSON(ev)
		}
		if !header {
			header = true
			if err := e.printColumns(columns, func(c eventColumn) string { return c.name }); err != nil {
				return err
			}
		}
		if ev.Conn == nil {
			_, err := fmt.Fprintf(e.stdout, "%-12s %-8s %d events: they came too fast\n", eventTime(&ev), ev.Event, ev.Lost)
			return printed(err)
		}
		return e.printColumns(columns, func(c eventColumn) string { return c.cell(&ev, ev.Conn) })
	}
}

func eventTime(ev *report.Event) string { return ev.At.Local().Format("15:04:05.000") }

// printColumns prints a line.
func (e *env) printColumns(columns []eventColumn, cell func(eventColumn) string) error {
	var b strings.Builder
	for i, c := range columns {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%-*s", c.width, cmp.Or(screen.Printable(cell(c)), "-"))
	}
	_, err := fmt.Fprintln(e.stdout, strings.TrimRight(b.String(), " "))
	return printed(err)
}
