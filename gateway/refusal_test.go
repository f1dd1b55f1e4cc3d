package gateway

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/negotiate"
)

// someLegs are available, or not.
type someLegs struct {
	noLegs
	missing bool
}

func (l *someLegs) Available() bool { return !l.missing }

// TestLegsComeBack: connections are native while sockets for legs cannot be made, and a
// drain stays one.
func TestLegsComeBack(t *testing.T) {
	p := newGatewayPair(t)
	g, steer, legs := p.g[0], p.steer[0], &someLegs{}
	g.engine().host.Legs = legs
	look := func(missing bool, want negotiate.Reason) {
		t.Helper()
		legs.missing = missing
		g.watchLegs()
		require.Equal(t, uint8(want), steer.refused)
		require.Equal(t, missing, len(g.Status().BlockedLegs) > 0)
	}
	look(false, negotiate.ReasonNone)
	look(true, negotiate.ReasonAppLegBlocked)
	look(false, negotiate.ReasonNone)
	look(true, negotiate.ReasonAppLegBlocked)
	require.NoError(t, g.refusals.Change(func(r *peers.Refusal) { r.Drained = true }))
	require.Equal(t, uint8(negotiate.ReasonDrained), steer.refused)
	look(false, negotiate.ReasonDrained)
}
