package conn

import (
	"maps"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/leak"
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
// heap. Beside it the wire leg takes 6 KiB in netstack, which is none here; of what
// is measured, 1 KiB are the sockets and pipes of the test.
func TestIdleFlows(t *testing.T) {
	p := newPair(t)
	const n = 200
	conns := []*pairConn{p.dial(t, negotiate.CarrierSHM)}
	before := liveHeap()
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
	for _, c := range conns[1:] {
		c.closeApps()
	}
	for _, c := range conns[1:] {
		c.over(t)
	}
	conns[0].closeApps()
	conns[0].over(t)
	p.empty(t)
}

// openFiles counts the descriptors of the process and tells its sockets by inode.
// Finalizers may close files of earlier tests at any time: the number is a bound.
func openFiles(t *testing.T) (number int, sockets map[string]bool) {
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	sockets = map[string]bool{}
	for _, e := range list {
		if name, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(name, "socket:") {
			sockets[name] = true
		}
	}
	return len(list), sockets
}

// TestIdleFlowsShareWhatIsNotTheirs: a flow has a queue pair, a descriptor and its
// rings. Completion and receive queues, goroutines and the peer are those of all.
func TestIdleFlowsShareWhatIsNotTheirs(t *testing.T) {
	for _, kind := range rdmaCarriers {
		t.Run(kind.String(), func(t *testing.T) { testIdleFlowsShare(t, kind) })
	}
}

func testIdleFlowsShare(t *testing.T, kind negotiate.CarrierKind) {
	p := newPair(t)
	const n = 100
	echo := func(c *pairConn) {
		_, err := c.app[0].Write([]byte{1})
		require.NoError(t, err)
		_, err = c.app[1].Read(make([]byte, 1))
		require.NoError(t, err)
	}
	conns := []*pairConn{p.dial(t, kind)}
	echo(conns[0])
	use := func(i int) map[string]uint64 { return p.g[i].providerOf(kind).Devices()[0].Use }
	before := [2]map[string]uint64{use(0), use(1)}
	memory := [2]int64{p.g[0].pool.Stats().Used, p.g[1].pool.Stats().Used}
	goroutines := runtime.NumGoroutine()
	files, sockets := openFiles(t)
	for range n {
		c := p.dial(t, kind)
		echo(c)
		conns = append(conns, c)
	}
	filesNow, socketsNow := openFiles(t)
	require.LessOrEqual(t, filesNow, files+4*n, "no other files")
	maps.DeleteFunc(socketsNow, func(name string, _ bool) bool { return sockets[name] })
	require.Len(t, socketsNow, 4*n, "both ends of both app legs")
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines+2 }, patience, time.Millisecond,
		"none per flow; what sets connections up ends")
	for i, g := range p.g {
		now := use(i)
		require.Equal(t, uint64(n), now["qps"]-before[i]["qps"], "no warm pool: queue pairs are made when they are needed")
		for _, shared := range []string{"cqs", "peers"} {
			require.Equal(t, before[i][shared], now[shared], shared)
		}
		if kind == negotiate.CarrierSHM {
			require.LessOrEqual(t, g.pool.Stats().Used-memory[i], int64(n*(256<<10+1<<10)), "one ring and a target list")
		}
		require.LessOrEqual(t, g.pool.Stats().Reserved, g.pool.Stats().Limit)
		for _, s := range g.shards {
			s.Call(func() { assert.Equal(t, 2, s.Load().Queues, "one completion queue per device") })
		}
	}
	for _, c := range conns {
		c.closeApps()
	}
	for _, c := range conns {
		c.over(t)
	}
	p.empty(t)
	for i := range p.g {
		require.Eventually(t, func() bool { return use(i)["qps"] == 0 }, patience, time.Millisecond)
	}
}

// An idle connection has these.
func TestIdleSizes(t *testing.T) {
	leak.SizeAtMost[Flow](t, 640-8)
	leak.SizeAtMost[carry](t, 176)
	leak.SizeAtMost[wireControl](t, 240)
	leak.SizeAtMost[appLeg](t, 16)
}

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
