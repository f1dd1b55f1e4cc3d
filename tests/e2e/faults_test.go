package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// TestFaultsOnTheWire: loss, duplication, reordering and delay hit the wire
// leg: handshakes are repeated, declined or late, and every connection still
// works, carried or native.
func TestFaultsOnTheWire(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{NoOffload: true})
	w.serve(w.h2)
	g1, _ := w.upBoth(settings{Handshake: quick, NegativeCache: "1s"})
	for _, fault := range []struct {
		name string
		box  testnet.Box
	}{
		{"loss", testnet.Box{Loss: 20}},
		{"duplication", testnet.Box{Dup: 100}},
		{"reordering", testnet.Box{Reorder: 100, Delay: time.Millisecond}},
		{"delay", testnet.Box{Delay: 20 * time.Millisecond, Jitter: 5 * time.Millisecond}},
		{"all", testnet.Box{Loss: 20, Dup: 20, Reorder: 50, Delay: 2 * time.Millisecond}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			g1.says("peers", "flush")
			require.NoError(t, w.net.SetBox(fault.box))
			before := g1.status().FlowsTotal[w.via]
			for _, to := range []string{w.h2.AddrPort4(transferPort).String(), w.h2.AddrPort6(transferPort).String()} {
				e := w.mustApp(w.h1, "churn", "-count", "60", "-parallel", "6", "-size", "30000", "-to", to)
				require.Equal(t, 60, e.OK)
			}
			s := g1.status()
			require.Greater(t, s.FlowsTotal[w.via], before, "some are carried all the same")
			t.Logf("%d of 120 carried by %s, relayed so far %d, fallbacks so far %v",
				s.FlowsTotal[w.via]-before, w.via, s.FlowsTotal[report.CarrierRelay], s.FallbacksTotal)
		})
	}
	require.NoError(t, w.net.SetBox(testnet.Box{}))
	stats, err := w.net.BoxStats()
	require.NoError(t, err)
	require.Positive(t, stats.Lost, "the box did its work")
	require.Positive(t, stats.Duplicated)
	require.Positive(t, stats.Reordered)
}
