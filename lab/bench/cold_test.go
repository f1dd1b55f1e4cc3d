package bench

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/comparison"
	"github.com/smcgw/smcgw/lab/testnet"
)

// Connections to a cold peer meet it anew: over shared memory each has a peer of its own, which ends with it. Again, the
// trials of the run before have ended.
func TestColdPeer(t *testing.T) {
	testnet.Require(t, "root", "bpf")
	cc, restore, err := congestion("")
	require.NoError(t, err)
	defer restore()
	n, err := newNetwork(cc)
	require.NoError(t, err)
	defer func() { require.NoError(t, n.close()) }()
	ways, err := n.build(t.Context(), testnet.Program(t), "", "", []string{Shm, Soft1500})
	require.NoError(t, err)
	const runs = 2
	again := map[string]int{}
	for _, name := range []string{Shm, Soft1500} {
		w := ways[name]
		for done := 0; done < runs; {
			check, err := w.begin(t.Context())
			require.NoError(t, err)
			values, err := coldPeer.do(t.Context(), w, 0)
			require.NoError(t, err)
			require.Len(t, values, 2)
			if err = check(t.Context()); errors.Is(err, errOtherWay) && again[name] < 5 { // now and then, on a busy machine
				t.Log(name, err)
				again[name]++
				continue
			}
			require.NoError(t, err)
			done++
			t.Logf("%s: %.0f a second, median %.0f µs", name, values[0], values[1])
		}
	}
	shm := ways[Shm]
	for _, h := range []*host{shm.client, shm.server} {
		require.Eventually(t, func() bool {
			down := strings.Count(h.gateway.proc.Output(), "shm peer down")
			return down == runs*coldConnections || down > runs*coldConnections && again[Shm] > 0
		}, 30*time.Second, time.Millisecond, h.Name)
	}

	// On the same hosts: what few connections that idle take.
	values, err := idleConnections.do(t.Context(), shm, comparison.WarmUp)
	require.NoError(t, err)
	require.Len(t, values, len(idleConnections.metrics))
	require.Positive(t, values[2], "rings, of all that there is of it")
}
