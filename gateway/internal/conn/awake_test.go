package conn

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
)

// TestAwake: the wire leg of a flow that has moved bytes speaks once in all rounds, others
// do not.
func TestAwake(t *testing.T) {
	busy, idle, relayed := &Flow{Opening: Opening{ID: 1}}, &Flow{Opening: Opening{ID: 2}}, &Flow{Opening: Opening{ID: 3}}
	for f, by := range map[*Flow]config.Carrier{busy: config.CarrierShm, idle: config.CarrierShm, relayed: config.CarrierRelay} {
		f.show(func(v *view) { v.carrier = by })
	}
	var a Awake
	rounds := func(flows ...*Flow) (speak []*Flow) {
		for range awakeRounds {
			speak = append(speak, a.tick(flows)...)
		}
		return speak
	}
	require.Empty(t, rounds(busy, idle, relayed))
	for range 3 {
		busy.rx.Add(1)
		relayed.tx.Add(1)
		require.Equal(t, []*Flow{busy}, rounds(busy, idle, relayed))
	}
	require.Empty(t, rounds(busy, idle, relayed))
	known := func() (n int) {
		for _, m := range a.moved {
			n += len(m)
		}
		return n
	}
	require.Equal(t, 2, known())
	require.Empty(t, rounds())
	require.Zero(t, known(), "flows that have ended are forgotten")
}

// However many flows are busy, few speak at a time.
func TestAwakeSpreads(t *testing.T) {
	var a Awake
	flows := make([]*Flow, 100*awakeRounds)
	for i := range flows {
		flows[i] = &Flow{Opening: Opening{ID: uint64(i)}}
		flows[i].show(func(v *view) { v.carrier = config.CarrierShm })
		flows[i].tx.Add(1)
	}
	for range awakeRounds {
		require.Len(t, a.tick(flows), 100)
	}
}
