package gateway

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/negotiate"
)

// liveHeap is how much of the heap lives.
func liveHeap() int64 {
	var m runtime.MemStats
	for range 3 { // what pools and finalizers hold goes later
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestIdleFlows: a flow that has carried something and is idle costs a few KiB of
// heap and one queue pair, and its end gives both back. Beside it the wire leg
// takes 6 KiB in netstack, which is none here; of what is measured, 1 KiB are the
// sockets and pipes of the test.
func TestIdleFlows(t *testing.T) {
	p := newGatewayPair(t)
	const n = 200
	conns := []*pairConn{p.dial(t, negotiate.CarrierSHM)}
	queuePairs := func() (sum int) {
		for _, s := range conns[0].flow[0].g.shards {
			s.Call(func() {
				for _, q := range s.cqs {
					sum += len(q.flows)
				}
			})
		}
		return sum
	}
	require.Len(t, conns[0].flow[0].g.shards[0].cqs, 2, "one completion queue per device, whatever flows there are")
	before, began := liveHeap(), queuePairs()
	for range n {
		c := p.dial(t, negotiate.CarrierSHM)
		_, err := c.app[0].Write(make([]byte, 64))
		require.NoError(t, err)
		_, err = c.app[1].Read(make([]byte, 64))
		require.NoError(t, err)
		conns = append(conns, c)
	}
	each := (liveHeap() - before) / (2 * n)
	t.Logf("%d bytes of heap", each)
	require.Less(t, each, int64(8<<10))
	require.Equal(t, n, queuePairs()-began)
	for _, c := range conns[1:] {
		c.closeApps()
	}
	for _, c := range conns[1:] {
		c.over(t)
	}
	require.Eventually(t, func() bool { return queuePairs() == began }, 20*time.Second, 10*time.Millisecond)
	conns[0].closeApps()
	conns[0].over(t)
	p.empty(t)
}
