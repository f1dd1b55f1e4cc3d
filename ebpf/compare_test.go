package ebpf

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// take adds up what has ended, by all but how long it took.
func (c comparedSum) take(t *testing.T, d *Datapath) {
	t.Helper()
	list, err := d.TakeCompared()
	require.NoError(t, err)
	for _, v := range list {
		lasted := time.Duration(math.Exp2(float64(v.Lasted)/4) * float64(time.Microsecond))
		require.Greater(t, lasted, 10*time.Microsecond)
		require.Less(t, lasted, time.Minute)
		c[Compared{Rule: v.Rule, Past: v.Past, Offered: v.Offered, Size: v.Size}] += v.Count
	}
}

type comparedSum map[Compared]uint64

// ended waits until n connections have ended.
func (c comparedSum) ended(t *testing.T, d *Datapath, n uint64) {
	t.Helper()
	require.Eventually(t, func() bool {
		c.take(t, d)
		all := uint64(0)
		for _, v := range c {
			all += v
		}
		return all == n
	}, 30*time.Second, 20*time.Millisecond, "%v", c)
}

// TestCompared: connections inside and outside of the share are told apart, by rule and
// size, from connect() to their end. What cannot be offered is not compared.
func TestCompared(t *testing.T) {
	t.Parallel()
	h1, h2 := newPair(t)
	for _, port := range []string{"9000", "9001", "9002"} {
		h2.echo(port)
	}
	cfg := config([]Rule{{Ports: []uint16{9001}}, {Ports: []uint16{9000}, Action: ActionAccelerate}, {Ports: []uint16{9002}, Action: ActionNotWorthIt}})
	cfg.Rollout = Rollout{Share: ShareOf(50)}
	d := h1.open(cfg)
	const conns, small, bulk = 40, 1000, 2 << 20
	run := func(port string, n int) {
		for range conns {
			echoed(t, h1, "10.77.0.2:"+port, n)
		}
	}
	sum := comparedSum{}
	run("9000", small)
	sum.ended(t, d, 0)

	require.NoError(t, d.SetCompare(true))
	run("9000", small)
	run("9000", bulk)
	run("9001", small)
	sum.ended(t, d, 2*conns)
	for _, size := range []uint8{1, 4} { // below 16 KiB both ways, and above 4 MiB with SYN and FIN
		in, out := sum[Compared{Rule: 1, Offered: true, Size: size}], sum[Compared{Rule: 1, Size: size}]
		require.EqualValues(t, conns, in+out, "%v", sum)
		require.InDelta(t, conns/2, in, conns/2-2)
	}

	// The peer is known to be none, or the rule leaves everything native: nothing is compared
	// that the share leaves native, since inside it would be native, too.
	require.NoError(t, d.Remember(netip.MustParseAddr("10.77.0.2"), 9000, ReasonOptionBlackholed, time.Hour))
	clear(sum)
	run("9000", small)
	run("9002", small)
	sum.ended(t, d, 0)
	require.NoError(t, d.Forget(netip.MustParseAddr("10.77.0.2"), 9000))
	require.NoError(t, d.SetCompare(false))
	run("9000", small)
	sum.ended(t, d, 0)

	require.NoError(t, d.SetCompare(true))
	c, err := h1.connect("10.77.0.2:9000", patience)
	require.NoError(t, err)
	require.NoError(t, d.SetPolicy(cfg.Policy[:2]))
	require.NoError(t, c.Close())
	sum.ended(t, d, 1)
	for k := range sum {
		require.True(t, k.Past)
	}
}
