package bench

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/internal/comparison"
	"github.com/smcgw/smcgw/lab/testnet"
)

// Programs with the library are promoted on one host and between two, and those that connect for one request are not.
func TestInProcess(t *testing.T) {
	testnet.Require(t, "root", "bpf", "redis-benchmark", "nginx", "wrk")
	list := counted(t, func() ([]*comparison.Report, error) {
		r, err := Run(t.Context(), Options{
			Executable: testnet.Program(t), Library: testnet.Library(t), Rounds: 1, Duration: 200 * time.Millisecond, Log: t.Output(),
			Only: []string{"redis-c50", "loopback-redis-c50", "web-close"}, Variants: []string{comparison.TCP, InProcess},
		})
		return appendReport(nil, r), err
	})
	require.Len(t, list, 1)
	require.Len(t, list[0].Series, 18)
}

// A run of which something was not promoted does not count.
func TestWhollyPromoted(t *testing.T) {
	before := moved{broker.Counters{Totals: broker.Totals{Promoted: 3}}, 100}
	good := moved{broker.Counters{Totals: broker.Totals{Promoted: 4}}, 100 + fewestRingBytes}
	require.NoError(t, whollyPromoted(before, good))
	none := good
	none.counters.Promoted = 3
	require.ErrorIs(t, whollyPromoted(before, none), errOtherWay)
	idle := good
	idle.ring--
	require.ErrorIs(t, whollyPromoted(before, idle), errOtherWay)
	idle.ring = 0
	require.ErrorIs(t, whollyPromoted(before, idle), errOtherWay)
	for _, set := range []func(*broker.Counters){
		func(c *broker.Counters) { c.Denied[inprocess.WhyLimit]++ },
		func(c *broker.Counters) { c.Returned[inprocess.WhyCounts]++ },
	} {
		native := good
		set(&native.counters)
		require.ErrorIs(t, whollyPromoted(before, native), errOtherWay)
	}
}

func TestParseUsage(t *testing.T) {
	text := "usage_usec 2500000\nuser_usec 1\n"
	v, err := parseUsage(text)
	require.NoError(t, err)
	require.InDelta(t, 2.5, v, 1e-9)
	for i := range len("usage_usec 2") {
		_, err := parseUsage(text[:i])
		require.ErrorIs(t, err, errStat)
	}
	require.False(t, math.IsNaN(v))
}
