package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/admin"
)

// errEnough ends a stream: nothing more is wanted of it.
var errEnough = errors.New("enough events")

func newWatch(e *env) *cobra.Command {
	var filter filterFlags
	var from string
	var count int
	var limit time.Duration
	c := &cobra.Command{
		Use:   "watch",
		Short: "Show what happens to connections, as it happens",
		Long: `Watch prints a line when a connection begins to be carried, leaves its carrier for the
relay (demoted), ends, or stays native, with its reason, until it is interrupted. It
costs the gateway nothing while nobody watches. Of UDP it shows ends and native ones.

With --json it prints one JSON document a line. --from reads such lines from a file,
"-" for standard input, instead of asking the daemon, and prints those that match.`,
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
			show := counted(count, e.showEvent())
			if from != "" {
				return ignoreEnough(readEvents(cmd.InOrStdin(), from, f, show))
			}
			c := e.client(defaultConfig().Admin)
			defer c.Close()
			return ignoreEnough(c.Watch(ctx, f, nil, show))
		},
	}
	c.Flags().StringVar(&from, "from", "", "read events from this file instead of the daemon")
	c.Flags().IntVarP(&count, "count", "n", 0, "end after this many events")
	c.Flags().DurationVar(&limit, "for", 0, "end after this time, such as 10s")
	filter.register(c)
	return withSocket(e, noun(e, withList(e, c)))
}

// interruptible is a context that ^C and SIGTERM end; a second signal ends the program.
func interruptible(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, cancel)
	return ctx, cancel
}

// watch shows what happens to connections until ^C.
func (e *env) watch(ctx context.Context, c *admin.Client, f admin.ConnFilter) error {
	ctx, stop := interruptible(ctx)
	defer stop()
	return c.Watch(ctx, f, nil, e.showEvent())
}

// readEvents reads a stream of events from a file.
func readEvents(stdin io.Reader, name string, f admin.ConnFilter, fn func(admin.Event) error) error {
	from := stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("--from: %w", err)
		}
		defer file.Close()
		from = file
	}
	return admin.ReadEvents(from, func(ev admin.Event) error {
		if ev.Conn != nil && !f.Matches(ev.Conn) {
			return nil
		}
		return fn(ev)
	})
}

// counted ends a stream after n events; 0: it does not.
func counted(n int, fn func(admin.Event) error) func(admin.Event) error {
	left := n
	return func(ev admin.Event) error {
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

// eventLine are the widths of the columns of events, which come one by one.
const eventLine = "%-12s %-8s %-7s %-6s %-21s %-21s %-11s %-28s %8s %8s\n"

// showEvent returns what prints events; the first is behind a header.
func (e *env) showEvent() func(admin.Event) error {
	header := e.noHeader
	return func(ev admin.Event) error {
		if e.json {
			return e.printJSON(ev)
		}
		if !header {
			header = true
			if _, err := fmt.Fprintf(e.stdout, eventLine, "TIME", "EVENT", "ID", "SIDE", "LOCAL", "REMOTE", "CARRIER", "REASON", "TX", "RX"); err != nil {
				return printed(err)
			}
		}
		return e.printEvent(ev)
	}
}

func (e *env) printEvent(ev admin.Event) error {
	at := ev.At.Local().Format("15:04:05.000")
	c := ev.Conn
	if c == nil {
		_, err := fmt.Fprintf(e.stdout, "%-12s %-8s %d events: this reader was too slow\n", at, ev.Event, ev.Lost)
		return printed(err)
	}
	cells := []any{at, string(ev.Event), strconv.FormatUint(c.ID, 10), string(c.Side), c.Local.String(), c.Remote.String(), howCell(c), reasonCell(c), sizeCell(c, c.TxBytes), sizeCell(c, c.RxBytes)}
	for i, cell := range cells {
		if cells[i] = screen.Printable(cell.(string)); cells[i] == "" {
			cells[i] = "-"
		}
	}
	_, err := fmt.Fprintf(e.stdout, eventLine, cells...)
	return printed(err)
}
