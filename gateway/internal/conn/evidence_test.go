package conn

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// TestOwnLatenessIsNotRemembered: what was waited for in vain is the peer's fault only
// where this gateway was in time. What the peer has said or shown is remembered whatever
// the gateway did meanwhile, and what this host lacks never.
func TestOwnLatenessIsNotRemembered(t *testing.T) {
	silent := negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: negotiate.ReasonHandshakeTimeout, Waited: 2 * time.Second}
	raw := negotiate.Verdict{Outcome: negotiate.OutcomeRaw, Reason: negotiate.ReasonAcceptLost, Waited: 20 * time.Millisecond}
	shown, said := raw, silent
	shown.Waited, shown.Shown = 0, true
	said.Waited, said.Remote = 0, true
	remember := func(v negotiate.Verdict) func(*Flow) { return func(f *Flow) { f.remember(v) } }
	for name, c := range map[string]struct {
		late time.Duration
		what func(f *Flow)
		want bool
	}{
		"silence":                    {0, remember(silent), true},
		"silence, late for a little": {20 * time.Millisecond, remember(silent), true},
		"silence, stood still":       {loop.StuckAfter, remember(silent), false},
		"no PROPOSAL":                {0, remember(raw), true},
		"no PROPOSAL, late":          {5 * time.Millisecond, remember(raw), false},
		"native bytes, late":         {5 * time.Millisecond, remember(shown), true},
		"declined, late":             {loop.StuckAfter, remember(said), true},
		"own packet":                 {0, func(f *Flow) { f.adopted(nil, netstack.ErrOverload) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			g := p.g[0]
			f := bareFlow(g, report.SideClient, 4000)
			g.Pulse = new(loop.Pulse)
			g.Pulse.Late(f.start.Add(time.Nanosecond), c.late)
			f.call(func() { c.what(f) })
			list, err := p.steer[0].Peers()
			require.NoError(t, err)
			require.Equal(t, c.want, len(list) > 0)
			f.call(func() { f.abort(negotiate.ReasonDrained, false) })
			waitBuried(t, f)
			g.Pulse = &g.pulse
		})
	}
}
