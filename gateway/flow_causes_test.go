package gateway

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
)

// diagram draws stateMoves and endings.
func diagram() string {
	var b strings.Builder
	for _, m := range stateMoves {
		var to []string
		for _, s := range m.to {
			to = append(to, s.String())
		}
		fmt.Fprintf(&b, "//\t%-11s ─► %s\n", m.from, strings.Join(to, ", "))
	}
	for _, s := range []State{StateClosed, StateReleased, StateAborted} {
		var why []string
		for _, e := range endings {
			if e.state == s {
				why = append(why, e.name)
			}
		}
		fmt.Fprintf(&b, "//\tany ─► %-9s %s\n", s.String()+":", strings.Join(why, ", "))
	}
	return b.String()
}

// TestStateDiagram: the comment shows what the tables say.
func TestStateDiagram(t *testing.T) {
	source, err := os.ReadFile("flow.go")
	require.NoError(t, err)
	require.Contains(t, string(source), "\n//\n"+diagram()+"//\n")
}

// TestStatesLead: only along the tables, and never out of a final state.
func TestStatesLead(t *testing.T) {
	all := []State{StateAccepted, StateNegotiating, StateCompleting, StateCarrying, StateClosing, StateClosed, StateReleased, StateAborted}
	for _, from := range all {
		reached := map[State]bool{}
		for _, to := range all {
			f := &flow{g: &gateway{}}
			f.state.Store(uint32(from))
			if to != StateCarrying { // whose bytes a share begins to count
				f.to(to)
				require.Equal(t, from.leadsTo(to), f.getState() == to && from != to, "%s to %s", from, to)
			}
			reached[to] = from.leadsTo(to)
		}
		require.False(t, reached[from], "twice")
		for _, end := range all[5:] {
			require.Equal(t, !from.final(), reached[end])
		}
		for earlier := range from {
			require.False(t, from.leadsTo(earlier), "%s back to %s", from, earlier)
		}
	}
}

// TestEndingsTable: what holds for every way in which a flow ends.
func TestEndingsTable(t *testing.T) {
	for c, e := range endings {
		require.NotEmpty(t, e.name, c)
		require.True(t, e.state.final(), e.name)
		if e.anew { // a new connection on the tuple: the entry is dead by then, and the peer is told
			require.Equal(t, entryKept, e.entry, e.name)
			require.Equal(t, wireReset, e.wire, e.name)
		}
		require.Equal(t, e.state == StateClosed, e.end == admin.EndClosed, e.name)
		require.Equal(t, e.state == StateAborted, e.end == admin.EndAborted, e.name)
		if e.state == StateClosed {
			require.Equal(t, appClean, e.app, e.name)
			require.Equal(t, nobodys, e.fellBack, e.name)
		}
		if e.end == admin.EndNative {
			require.Equal(t, everybodys, e.fellBack, "%s: a connection that is native from here on is counted", e.name)
		}
		if e.wire == wireForget {
			require.False(t, e.tell, "%s: no packet may leave", e.name)
		}
	}
}
