package conn

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
)

// TestAwake: of few flows each speaks at the tick after it has moved bytes, others do not.
func TestAwake(t *testing.T) {
	busy, idle, relayed := &Flow{Opening: Opening{ID: 1}}, &Flow{Opening: Opening{ID: 2}}, &Flow{Opening: Opening{ID: 3}}
	for f, by := range map[*Flow]report.Carrier{busy: report.CarrierShm, idle: report.CarrierShm, relayed: report.CarrierRelay} {
		f.show(func(v *view) { v.carrier = by })
	}
	var a Awake
	busy.rx.Add(1)
	require.Empty(t, a.tick([]*Flow{busy, idle, relayed}), "it is new")
	for range 2 * awakeTicks {
		require.Empty(t, a.tick([]*Flow{busy, idle, relayed}))
		busy.rx.Add(1)
		relayed.tx.Add(1)
		require.Equal(t, []*Flow{busy}, a.tick([]*Flow{busy, idle, relayed}))
	}
	require.Len(t, a.moved, 2)
	for range awakeTicks {
		require.Empty(t, a.tick(nil))
	}
	require.Empty(t, a.moved, "flows that have ended are forgotten")
}

// However many flows are busy, few speak at a time, and each within awakeTicks.
func TestAwakeSpreads(t *testing.T) {
	for _, n := range []int{awakeFew - 1, 10 * awakeFew, 100 * awakeTicks} {
		var a Awake
		flows := make([]*Flow, n)
		for i := range flows {
			flows[i] = &Flow{Opening: Opening{ID: uint64(i)}}
			flows[i].show(func(v *view) { v.carrier = report.CarrierShm })
		}
		spoke := map[*Flow]bool{}
		for range 1 + awakeTicks {
			speak := a.tick(flows)
			require.LessOrEqual(t, len(speak), max(awakeFew, n/awakeTicks))
			for _, f := range speak {
				spoke[f] = true
			}
			for _, f := range flows {
				f.tx.Add(1)
			}
		}
		require.Len(t, spoke, n)
	}
}
