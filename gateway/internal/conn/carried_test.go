package conn

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// rawApp moves an application's socket out of Go's poller, whose calls would
// count as the gateway's.
func rawApp(t *testing.T, c *net.TCPConn) int {
	f, err := c.File()
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	fd := int(f.Fd())
	require.NoError(t, unix.SetNonblock(fd, false))
	return fd
}

func readFull(t *testing.T, fd int, b []byte) {
	for len(b) > 0 {
		n, err := unix.Read(fd, b)
		if err != nil || n == 0 { // without an assertion: those allocate
			require.FailNow(t, "read", "%d bytes, %v", n, err)
		}
		b = b[n:]
	}
}

// allocations counts those of a run of fn, on average. Unlike AllocsPerRun it
// leaves the loops their processors, which they hold while they are busy. What
// goes on at rest, by the clock, is not counted.
func allocations(runs int, fn func()) float64 {
	fn()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	for range runs {
		fn()
	}
	runtime.ReadMemStats(&after)
	n := int64(after.Mallocs-before.Mallocs) - restingAllocations(time.Since(start))
	return float64(max(n, 0)) / float64(runs)
}

// restingAllocations is more than gateways that do nothing allocate in that time.
func restingAllocations(d time.Duration) int64 { return 10 * int64(d/(50*time.Millisecond)) }

// TestPumpAllocatesNothing: neither for a request and its response nor for bulk.
func TestPumpAllocatesNothing(t *testing.T) {
	for _, kind := range rdmaCarriers {
		t.Run(kind.String(), func(t *testing.T) { testPumpAllocatesNothing(t, kind) })
	}
}

func testPumpAllocatesNothing(t *testing.T, kind negotiate.CarrierKind) {
	p := newPair(t)
	c := p.dial(t, kind)
	a, b := rawApp(t, c.app[0]), rawApp(t, c.app[1])
	buf, got := make([]byte, 64), make([]byte, 64)
	trip := func() {
		_, _ = unix.Write(a, buf)
		readFull(t, b, got)
		_, _ = unix.Write(b, buf)
		readFull(t, a, got)
	}
	for range 100 {
		trip()
	}
	require.Less(t, allocations(1000, trip), 0.1, "64 bytes there and back")

	big, sink := make([]byte, 16<<10), make([]byte, 16<<10)
	bulk := func() {
		for range 64 {
			_, _ = unix.Write(a, big)
			readFull(t, b, sink)
		}
	}
	bulk()
	require.Less(t, allocations(25, bulk), 1.0, "1 MiB")
	c.closeApps()
	_ = unix.Shutdown(a, unix.SHUT_RDWR)
	_ = unix.Shutdown(b, unix.SHUT_RDWR)
	c.over(t)
}

// TestBulkLeavesRoom: flows that could go on for ever share the loop with one
// that wants little.
func TestBulkLeavesRoom(t *testing.T) {
	for _, kind := range rdmaCarriers {
		t.Run(kind.String(), func(t *testing.T) { testBulkLeavesRoom(t, kind) })
	}
}

func testBulkLeavesRoom(t *testing.T, kind negotiate.CarrierKind) {
	p := newPair(t)
	var bulks []*pairConn
	for range 4 {
		c := p.dial(t, kind)
		bulks = append(bulks, c)
		go func() {
			b := make([]byte, 1<<20)
			for {
				if _, err := c.app[0].Write(b); err != nil {
					return
				}
			}
		}()
		go func() { _, _ = io.Copy(io.Discard, c.app[1]) }()
	}
	small := p.dial(t, kind)
	buf := make([]byte, 1)
	for range 25 { // while the others never end
		require.NoError(t, small.app[1].SetReadDeadline(time.Now().Add(patience)))
		_, err := small.app[0].Write(buf)
		require.NoError(t, err)
		_, err = io.ReadFull(small.app[1], buf)
		require.NoError(t, err)
	}
	for _, c := range append(bulks, small) {
		c.closeApps()
		c.over(t)
	}
	p.empty(t)
}

// TestStartBehindTeardown: a flow that ends between its last word and the first
// turn of what carries it leaves nothing, whichever is first.
func TestStartBehindTeardown(t *testing.T) {
	for _, kind := range allCarriers {
		t.Run(kind.String(), func(t *testing.T) { testStartBehindTeardown(t, kind) })
	}
}

func testStartBehindTeardown(t *testing.T, kind negotiate.CarrierKind) {
	p := newPair(t)
	for i := range 60 {
		a, b := newFakeWires(1<<20, 1<<20)
		c := p.begin(t, a, b)
		if kind != negotiate.CarrierRelay {
			c.meet(t, kind)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for _, f := range c.flow {
				if i%3 == 0 {
					f.call(f.replaced)
				} else {
					f.call(func() { f.abort(negotiate.ReasonPeerDead, false) })
				}
			}
		}()
		if i%2 == 0 {
			time.Sleep(time.Duration(i) * time.Microsecond)
		}
		c.carry(kind)
		<-done
		c.over(t)
		c.closeApps()
	}
	p.empty(t)
}

// TestPeerHangsUp: a peer whose process lives on and that shares no memory any
// more keeps its connections, on the relay. All memory shared with it goes.
func TestPeerHangsUp(t *testing.T) {
	p := newPair(t)
	var conns []*pairConn
	sent := make([]byte, 8_000_000)
	for i := range sent {
		sent[i] = byte(i) + byte(i>>8)
	}
	var writes sync.WaitGroup
	for range 10 {
		c := p.dial(t, negotiate.CarrierSHM)
		writes.Go(func() {
			_, _ = c.app[0].Write(sent)
			_ = c.app[0].CloseWrite()
		})
		conns = append(conns, c)
	}
	time.Sleep(20 * time.Millisecond) // rings and buffers fill up
	for _, peer := range p.g[0].Providers[0].(*carrier.Shm).Peers() {
		_ = peer.Close()
	}
	for _, c := range conns {
		for _, f := range c.flow {
			require.Eventually(t, func() bool { return f.Info(time.Now()).Carrier == report.CarrierRelay }, patience, time.Millisecond)
		}
		_ = c.app[1].SetReadDeadline(time.Now().Add(patience))
		got, err := io.ReadAll(c.app[1])
		require.NoError(t, err)
		require.True(t, bytes.Equal(sent, got))
		require.NoError(t, c.app[1].Close())
		_, err = io.ReadAll(c.app[0])
		require.NoError(t, err)
		require.Equal(t, [2]life.Phase{life.Closed, life.Closed}, c.over(t))
		for _, f := range c.flow {
			info := f.Info(time.Now())
			require.Equal(t, report.CarrierRelay, info.Carrier)
			require.Contains(t, []string{"device_failed", report.DemotedByPeer}, info.Demoted)
		}
		c.closeApps()
	}
	writes.Wait()
	p.empty(t)
	for _, g := range p.g {
		require.Eventually(t, func() bool { return g.pool.Stats().Reserved == 0 }, 30*time.Second, time.Millisecond)
		require.Zero(t, g.pool.Stats().Arenas)
	}
	c := p.dial(t, negotiate.CarrierSHM) // they meet again
	_, err := c.app[0].Write([]byte("x"))
	require.NoError(t, err)
	_, err = io.ReadFull(c.app[1], make([]byte, 1))
	require.NoError(t, err)
	require.Equal(t, report.CarrierShm, c.flow[0].Info(time.Now()).Carrier)
	c.closeApps()
	c.over(t)
}

// TestDrainUnderLoad: a gateway that goes down in the middle resets what it
// carries, and has nothing left to wait for.
func TestDrainUnderLoad(t *testing.T) {
	p := newPair(t)
	var conns []*pairConn
	for i := range 10 {
		c := p.dial(t, allCarriers[i%3])
		conns = append(conns, c)
		go func() {
			for {
				if _, err := c.app[0].Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}()
	}
	done := make(chan struct{})
	go func() {
		p.g[1].drain()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		require.Fail(t, "the end hangs")
	}
	for _, c := range conns {
		c.over(t)
		c.closeApps()
	}
	require.Empty(t, p.g[1].all())
}

// TestManyLeaveAtOnce: a device takes all of its connections with it; those of
// another one go on meanwhile.
func TestManyLeaveAtOnce(t *testing.T) {
	const flows = 300
	p := newPair(t)
	busy := p.dial(t, negotiate.CarrierSoft)
	var conns []*pairConn
	for range flows {
		conns = append(conns, p.dial(t, negotiate.CarrierSHM))
	}
	for i, c := range conns { // some have something under way
		if i%3 == 0 {
			_, err := c.app[i%2].Write(bytes.Repeat([]byte{byte(i)}, 20_000))
			require.NoError(t, err)
		}
	}
	start := time.Now()
	for _, f := range p.g[0].all() {
		if f.Carrier() == report.CarrierShm {
			f.Demote(report.DemotedByOperator)
		}
	}
	var slowest time.Duration
	buf := make([]byte, 1)
	left := func() (n int) {
		for _, g := range p.g {
			for _, f := range g.all() {
				if f.Info(time.Now()).Carrier == report.CarrierShm {
					n++
				}
			}
		}
		return n
	}
	for left() > 0 && time.Since(start) < patience {
		trip := time.Now()
		_, err := busy.app[0].Write(buf)
		require.NoError(t, err)
		_, err = io.ReadFull(busy.app[1], buf)
		require.NoError(t, err)
		slowest = max(slowest, time.Since(trip))
	}
	require.Zero(t, left())
	t.Logf("%d connections have left after %v; meanwhile another one waited %v at most", flows, time.Since(start), slowest)
	require.Less(t, slowest, patience)
	for i, c := range conns {
		if i%3 == 0 {
			got := make([]byte, 20_000)
			_ = c.app[1-i%2].SetReadDeadline(time.Now().Add(patience))
			_, err := io.ReadFull(c.app[1-i%2], got)
			require.NoError(t, err)
			require.Equal(t, bytes.Repeat([]byte{byte(i)}, 20_000), got)
		}
		for side := range 2 {
			_, err := c.app[side].Write([]byte{byte(side)})
			require.NoError(t, err)
			_, err = io.ReadFull(c.app[1-side], buf)
			require.NoError(t, err)
			require.Equal(t, byte(side), buf[0])
		}
		c.closeApps()
	}
	busy.closeApps()
	for _, c := range append(conns, busy) {
		require.Equal(t, [2]life.Phase{life.Closed, life.Closed}, c.over(t))
	}
	p.empty(t)
}

// A scrape between the moment a flow leaves the table and the one it is added to the totals.
func TestBytesOfTheEnded(t *testing.T) {
	p := newPair(t)
	g := p.g[0]
	var at []uint64
	unlink := g.Unlink
	g.Unlink = func(f *Flow) {
		unlink(f)
		at = append(at, g.snapshot().BytesTotal[report.CarrierShm].Tx)
	}
	c := p.dial(t, negotiate.CarrierSHM)
	const n = 100_000
	go func() { _, _ = c.app[0].Write(make([]byte, n)) }()
	_, err := io.ReadFull(c.app[1], make([]byte, n))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return g.snapshot().BytesTotal[report.CarrierShm].Tx == n }, time.Minute, time.Millisecond)
	require.NoError(t, c.app[0].Close())
	require.NoError(t, c.app[1].Close())
	c.over(t)
	require.EqualValues(t, n, g.snapshot().BytesTotal[report.CarrierShm].Tx)
	require.NotEmpty(t, at)
	for _, v := range at {
		require.EqualValues(t, n, v, "smcgw_bytes_total went from %d to %d and back", n, v)
	}
}
