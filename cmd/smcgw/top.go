package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
)

// topFlags are the flags of top.
type topFlags struct {
	filter   filterFlags
	interval time.Duration
	frames   int
	sort     string // a key of topOrders
}

// topOrders returns the sort orders of top, by name.
func topOrders() map[string]func(a, b report.ConnInfo) int {
	return map[string]func(a, b report.ConnInfo) int{
		"rate":  func(a, b report.ConnInfo) int { return cmp.Compare(b.TxRate+b.RxRate, a.TxRate+a.RxRate) },
		"bytes": func(a, b report.ConnInfo) int { return cmp.Compare(b.TxBytes+b.RxBytes, a.TxBytes+a.RxBytes) },
		"age":   func(a, b report.ConnInfo) int { return cmp.Compare(b.AgeSeconds, a.AgeSeconds) },
	}
}

func newTop(e *env) *cobra.Command {
	f := &topFlags{sort: "rate"}
	c := &cobra.Command{
		Use:   "top",
		Short: "Watch the busiest connections",
		Long: `Top shows what the gateway carries and the busiest connections, those in process among
them, again and again: what each moves a second, its round trip and the packets that
were sent again (soft). Keys: r, b and a sort by rate, bytes and age, q ends. Where
standard output is no terminal it prints one picture, or as many as -n says.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case f.interval < 100*time.Millisecond:
				return usagef("--interval %s: shorter than 100ms", f.interval)
			case f.frames < 0:
				return usagef("--count %d: a number below 0", f.frames)
			}
			filter, err := f.filter.parse()
			if err != nil {
				return err
			}
			client := e.reach()
			defer client.Close()
			return f.run(cmd, e, client, filter)
		},
	}
	c.Flags().DurationVar(&f.interval, "interval", 2*time.Second, "time between two pictures")
	c.Flags().IntVarP(&f.frames, "count", "n", 0, "end after this many pictures")
	f.filter.registerAddress(c)
	return withSocket(e, noun(e, c))
}

// topView is the state of top between two pictures.
type topView struct {
	before map[uint64]report.ConnInfo
	at     time.Time
	status report.Status
	list   admin.ConnList
}

// look queries the gateway once.
func (v *topView) look(ctx context.Context, c *admin.Client, f report.ConnFilter) (err error) {
	if v.status, err = c.Status(ctx); err != nil {
		return err
	}
	if v.list, err = c.Conns(ctx, report.ConnQuery{Details: true, Filter: f}); err != nil {
		return err
	}
	now := time.Now()
	if v.before != nil {
		rates(v.list.Conns, v.before, now.Sub(v.at).Seconds())
	}
	v.before, v.at = map[uint64]report.ConnInfo{}, now
	for _, i := range v.list.Conns {
		v.before[i.ID] = i
	}
	return nil
}

func (f *topFlags) run(cmd *cobra.Command, e *env, c *admin.Client, filter report.ConnFilter) error {
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	out := e.screen(e.stdout)
	live := out.Terminal() && !e.json
	if f.frames == 0 && !live {
		f.frames = 1
	}
	keys, restore := make(<-chan byte), func() {}
	if live {
		keys, restore = readKeys(cmd.InOrStdin())
		fmt.Fprint(e.stdout, "\x1b[?1049h\x1b[?25l") // switch to the alternate screen, hide the cursor
		defer fmt.Fprint(e.stdout, "\x1b[?25h\x1b[?1049l")
	}
	defer restore()
	v := &topView{}
	if err := v.look(ctx, c, filter); err != nil {
		return err
	}
	tick := time.NewTicker(f.interval)
	defer tick.Stop()
	for n := 0; f.frames == 0 || n < f.frames; {
		select {
		case <-ctx.Done():
			return nil
		case key := <-keys:
			if !f.press(key) {
				return nil
			}
		case <-tick.C:
			if err := v.look(ctx, c, filter); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			n++
		}
		if err := f.draw(e, v, live); err != nil {
			return err
		}
	}
	return nil
}

// press handles a key; it returns false if the key ends the program.
func (f *topFlags) press(key byte) bool {
	switch key {
	case 'q', 3: // ^C, for which a raw terminal sends no signal
		return false
	case 'r':
		f.sort = "rate"
	case 'b':
		f.sort = "bytes"
	case 'a':
		f.sort = "age"
	}
	return true
}

// readKeys reads single keys from a terminal.
func readKeys(from io.Reader) (keys <-chan byte, restore func()) {
	file, ok := from.(*os.File)
	if !ok {
		return nil, func() {}
	}
	before, err := term.MakeRaw(int(file.Fd()))
	if err != nil {
		return nil, func() {}
	}
	pressed := make(chan byte, 1)
	go func() { // it ends with the program: a read from a terminal cannot be cancelled
		var b [1]byte
		for {
			if n, err := file.Read(b[:]); n == 0 || err != nil {
				return
			}
			pressed <- b[0]
		}
	}()
	return pressed, func() { _ = term.Restore(int(file.Fd()), before) }
}

// draw prints a picture; on a terminal it replaces the previous one.
func (f *topFlags) draw(e *env, v *topView, live bool) error {
	slices.SortStableFunc(v.list.Conns, topOrders()[f.sort])
	if e.json {
		return e.printJSON(v.list)
	}
	var b bytes.Buffer
	to := *e
	to.stdout = &b
	columns, rows := 0, 0
	if live {
		columns, rows = e.terminal(e.stdout), screen.Rows(e.stdout)
		to.terminal = func(io.Writer) int { return columns }
	}
	s := to.screen(&b)
	b.WriteString(s.Paint(screen.Title, headline(v.status)) + "\n")
	b.WriteString(s.Field("memory", fmt.Sprintf("%s used, %s reserved of %s", screen.Size(v.status.Memory.UsedBytes), screen.Size(v.status.Memory.ReservedBytes), screen.Size(v.status.Memory.LimitBytes))))
	inProcessLine(func(name, format string, args ...any) { b.WriteString(s.Field(name, fmt.Sprintf(format, args...))) }, v.status.InProcess, "since the start")
	b.WriteString(s.Field("native", listed(v.status.FallbacksTotal)))
	if err := to.list(screen.Listing{
		Rows: connRows(v.list.Conns, false, true), Wide: append(wideOfEnds(), "PROTO", "SIDE", "STATE", "REASON", "TX", "RX"), Spare: []string{"RETRANS", "AGE", "ID"},
	}); err != nil {
		return err
	}
	text := b.String()
	if live {
		text = "\x1b[H" + screen.Fitted(text, rows) + "\x1b[J"
	}
	_, err := io.WriteString(e.stdout, text)
	return printed(err)
}
