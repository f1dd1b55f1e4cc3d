package conn

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
)

// TestAwake: the wire leg of a flow that has moved bytes speaks once a minute, others
// do not.
func TestAwake(t *testing.T) {
	busy, idle, relayed := &Flow{Opening: Opening{ID: 1}}, &Flow{Opening: Opening{ID: 2}}, &Flow{Opening: Opening{ID: 3}}
	for f, by := range map[*Flow]config.Carrier{busy: config.CarrierShm, idle: config.CarrierShm, relayed: config.CarrierRelay} {
		f.show(func(v *view) { v.carrier = by })
	}
	flows := func() []*Flow { return []*Flow{busy, idle, relayed} }
	var a Awake
	now := time.Now()
	require.Empty(t, a.tick(now, flows))
	for range 3 {
		busy.rx.Add(1)
		relayed.tx.Add(1)
		require.Empty(t, a.tick(now.Add(awakeEvery-1), flows), "not yet")
		now = now.Add(awakeEvery)
		require.Equal(t, []*Flow{busy}, a.tick(now, flows))
	}
	require.Empty(t, a.tick(now.Add(awakeEvery), flows))
	require.Len(t, a.moved, 2)
	require.Empty(t, a.tick(now.Add(2*awakeEvery), func() []*Flow { return nil }))
	require.Empty(t, a.moved, "flows that have ended are forgotten")
}
