package flow

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// name of a set of phases, as the diagram has it.
func (s phases) name() string {
	switch s {
	case anyPhase:
		return "any"
	case handshakes:
		return "handshake"
	case carried:
		return "carried"
	}
	for p := Accepted; p <= Dead; p++ {
		if s == in(p) {
			return p.String()
		}
	}
	return "?"
}

// counter of a row.
func (t *Transition) counter() string {
	switch {
	case t.On == Carries:
		return "carried"
	case t.Ending == nil:
		return "-"
	case t.Ending.FellBack == FallbackBoth:
		return "fallback"
	case t.Ending.FellBack == FallbackServer:
		return "fallback of a server"
	default:
		return "ended"
	}
}

// diagram draws the table.
func diagram() string {
	var b strings.Builder
	line := func(cells ...any) {
		fmt.Fprintf(&b, "//\t%s\n", strings.TrimRight(fmt.Sprintf("%-11s %-13s ─► %-11s %-20s %s", cells...), " "))
	}
	line("PHASE", "EVENT", "NEXT", "COUNTER", "REASON")
	for i := range transitions {
		t := &transitions[i]
		reason := ""
		if t.Reason != negotiate.ReasonNone {
			reason = t.Reason.String()
		}
		line(t.From.name(), t.On, t.To, t.counter(), reason)
	}
	return b.String()
}

// TestDiagram: the package comment shows what the table says.
func TestDiagram(t *testing.T) {
	source, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	require.Contains(t, string(source), "\n//\n"+diagram()+"//\n")
}

// TestOneRowPerEvent: an event leads from a phase to one other, forwards, and from no
// final one.
func TestOneRowPerEvent(t *testing.T) {
	seen := map[On]phases{}
	for i := range transitions {
		row := &transitions[i]
		require.NotEqual(t, "?", row.From.name(), row.On)
		require.Zero(t, seen[row.On]&row.From, "%s twice", row.On)
		seen[row.On] |= row.From
		for p := Offered; p <= Dead; p++ {
			if row.From.has(p) {
				require.False(t, p.Final())
				require.True(t, row.To.Final() || row.To > p, "%s: %s to %s", row.On, p, row.To)
			}
		}
		require.Equal(t, row.To.Final(), row.Ending != nil, row.On)
	}
	for e := Negotiates; e <= Panics; e++ {
		require.NotZero(t, seen[e], "%s does nothing", e)
	}
	require.Len(t, onNames, int(Panics)+1)
	require.Equal(t, "phase(77)", Phase(77).String())
}

// TestEndings: what holds for every way in which a connection ends.
func TestEndings(t *testing.T) {
	for i := range transitions {
		row := &transitions[i]
		e := row.Ending
		if e == nil {
			continue
		}
		if e.Anew { // a new connection on the tuple: the entry is dead by then, and the peer is told
			require.Equal(t, EntryKept, e.Entry, row.On)
			require.Equal(t, WireReset, e.Wire, row.On)
		}
		require.Equal(t, row.To == Closed, e.End == report.EndClosed, row.On)
		require.Equal(t, row.To == Aborted, e.End == report.EndAborted, row.On)
		if row.To == Closed {
			require.Equal(t, AppClean, e.App, row.On)
			require.Equal(t, FallbackNever, e.FellBack, row.On)
		}
		if e.End == report.EndNative {
			require.Equal(t, FallbackBoth, e.FellBack, "%s: a connection that is native from here on is counted", row.On)
		}
		if e.Wire == WireForget {
			require.False(t, e.Tell, "%s: no packet may leave", row.On)
		}
	}
}

// TestEndsOnce: whatever happens in whatever phase, a connection ends once, and nothing
// happens to it afterwards.
func TestEndsOnce(t *testing.T) {
	happens := map[string]func(c *Core) []Action{
		"aborts":     func(c *Core) []Action { return c.Aborts(negotiate.ReasonStalled, false) },
		"replaced":   (*Core).Replaced,
		"given back": func(c *Core) []Action { return c.GivenBack(true) },
		"vanishes":   func(c *Core) []Action { return c.Vanishes(negotiate.ReasonClientGone) },
		"panics":     func(c *Core) []Action { return c.Panicked(true, true) },
		"releases":   func(c *Core) []Action { return c.Releases(negotiate.Verdict{Reason: negotiate.ReasonAppRefused}) },
		"declines": func(c *Core) []Action {
			return c.HandshakeAborts(negotiate.Verdict{Outcome: negotiate.OutcomeDeclined}, false)
		},
	}
	steps := []func(*Core){
		func(*Core) {}, (*Core).Negotiates, (*Core).Completes, func(c *Core) { c.CarriedBy(ByRelay) }, (*Core).RawLegEnds,
	}
	for _, side := range []report.Side{report.SideClient, report.SideServer} {
		for far := range steps {
			for first, one := range happens {
				c := New(side)
				for _, step := range steps[:far+1] {
					step(&c)
				}
				require.Equal(t, Accepted+Phase(far), c.Phase())
				ends := 0
				for _, a := range one(&c) {
					if a.Do == End {
						ends++
					}
				}
				require.Equal(t, 1, ends, "%s in %s", first, Accepted+Phase(far))
				require.True(t, c.Ended() && c.Silent())
				at := c
				for second, other := range happens {
					require.Empty(t, other(&c), "%s after %s", second, first)
				}
				require.False(t, c.CarriedBy(ByLink))
				require.False(t, c.Talk())
				require.Empty(t, c.Cancel(negotiate.ReasonDrained))
				require.Empty(t, c.LosesAccept())
				require.Empty(t, c.RawOver())
				require.Empty(t, c.LegEnds(0))
				require.Empty(t, c.WireEnded(0))
				require.Empty(t, c.Settle(false))
				require.Empty(t, c.Linger(false))
				require.Empty(t, c.Ask(false))
				require.Empty(t, c.Pay())
				require.Empty(t, c.Leave("x"))
				require.Empty(t, c.Patience())
				require.Empty(t, c.LinkDrained(Drained{}))
				require.Empty(t, c.LinkFails(negotiate.ReasonDeviceFailed, true))
				require.Empty(t, c.Record(negotiate.Record{Type: negotiate.RecordEnd}, 0))
				c.Negotiates()
				c.Completes()
				require.Equal(t, at, c)
			}
		}
	}
}
