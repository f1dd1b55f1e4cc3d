package conn

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
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

// exchange has the receive ring of one side exchanged as the plan would have it,
// but at any time and for any size. It tells whether that could begin.
func exchange(c *carry, n int) (began bool) {
	c.Shard.Call(func() { began = c.Exchange(n) })
	return began
}

// patterned fills b with what a direction has from the offset on.
func patterned(b []byte, side, offset int) {
	for i := range b {
		at := offset + i
		b[i] = byte(at) ^ byte(at>>8) ^ byte(at>>16) ^ byte(side*0x5a)
	}
}

// send writes n bytes of a side's direction and ends it, or cuts the connection
// off instead.
func (c *pairConn) send(side, n int, cut bool) error {
	b := make([]byte, 48<<10)
	for at := 0; at < n; {
		k := min(len(b), n-at)
		patterned(b[:k], side, at)
		if _, err := c.app[side].Write(b[:k]); err != nil {
			return err
		}
		at += k
	}
	if cut {
		_ = c.app[side].SetLinger(0)
		return c.app[side].Close()
	}
	return c.app[side].CloseWrite()
}

// receive reads the other side's direction to its end and returns its length,
// -1 if a byte is wrong.
func (c *pairConn) receive(side int) (n int, err error) {
	b, want := make([]byte, 40<<10), make([]byte, 40<<10)
	for {
		k, err := c.app[side].Read(b)
		patterned(want[:k], 1-side, n)
		if string(b[:k]) != string(want[:k]) {
			return -1, nil
		}
		if n += k; errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
}

// TestRingsAreExchangedWhileFlowsEnd: whatever a flow is doing while its rings are
// exchanged, half-closed, ended or cut off, no byte is lost or wrong and all of
// its memory comes back.
func TestRingsAreExchangedWhileFlowsEnd(t *testing.T) {
	p := newPair(t)
	const rounds, most = 12, 3 << 20
	exchanges := 0
	for round := range rounds {
		rng := rand.New(rand.NewPCG(uint64(round), 1))
		c := p.dial(t, negotiate.CarrierSHM)
		carries := [2]*carry{c.flow[0].chosen(), c.flow[1].chosen()}
		cut := round%3 == 2
		sizes := [2]int{rng.IntN(most), rng.IntN(most)}
		var got [2]int
		var sent, received [2]error
		var wg sync.WaitGroup
		for side := range 2 {
			wg.Go(func() { sent[side] = c.send(side, sizes[side], cut && side == 1) })
			wg.Go(func() { got[side], received[side] = c.receive(side) })
		}
		over := make(chan struct{})
		go func() { wg.Wait(); close(over) }()
		for busy := true; busy; {
			select {
			case <-over:
				busy = false
			default:
				if exchange(carries[rng.IntN(2)], 2+rng.IntN(1<<(2+rng.IntN(19)))) {
					exchanges++
				}
				if rng.IntN(4) == 0 {
					time.Sleep(time.Duration(rng.IntN(300)) * time.Microsecond)
				}
			}
		}
		for side := range 2 {
			require.GreaterOrEqual(t, got[side], 0, "round %d: wrong bytes at side %d", round, side)
			if !cut {
				require.NoError(t, sent[side], "round %d", round)
				require.NoError(t, received[side], "round %d", round)
				require.Equal(t, sizes[1-side], got[side], "round %d: bytes at side %d", round, side)
			}
		}
		c.closeApps()
		states := c.over(t)
		if !cut {
			require.Equal(t, [2]life.Phase{life.Closed, life.Closed}, states)
		}
	}
	p.empty(t)
	require.NotZero(t, exchanges)
	t.Logf("%d exchanges", exchanges)
}

// TestRingFollowsTheFlow: the reader's ring becomes larger under a bulk flow, and as small as it was
// when the flow wants little; no byte is wrong on the way.
func TestRingFollowsTheFlow(t *testing.T) {
	p := newPair(t)
	c := p.dial(t, negotiate.CarrierSHM)
	reader := c.flow[1].chosen()
	size := func() (n int) {
		reader.Shard.Call(func() { n = reader.EP.RingSize() })
		return n
	}
	first, sent := size(), 0
	pass := func(n int) {
		b, got := make([]byte, n), make([]byte, n)
		patterned(b, 0, sent)
		written := make(chan error, 1)
		go func() {
			_, err := c.app[0].Write(b)
			written <- err
		}()
		_, err := io.ReadFull(c.app[1], got)
		require.NoError(t, err)
		require.NoError(t, <-written)
		require.True(t, bytes.Equal(b, got), "after %d bytes", sent)
		sent += n
	}
	began := time.Now()
	for size() == first {
		require.Less(t, time.Since(began), patience, "it grows")
		pass(8 << 20)
	}
	for began = time.Now(); size() > first; {
		require.Less(t, time.Since(began), patience, "it shrinks")
		pass(4 << 10)
	}
	c.closeApps()
	require.Equal(t, [2]life.Phase{life.Closed, life.Closed}, c.over(t))
	p.empty(t)
}

// control runs fn on the descriptor of a connection.
func control(t require.TestingT, c *net.TCPConn, fn func(fd int) error) {
	rc, err := c.SyscallConn()
	require.NoError(t, err)
	var failed error
	require.NoError(t, rc.Control(func(fd uintptr) { failed = fn(int(fd)) }))
	require.NoError(t, failed)
}

// sendAround writes two bytes, an urgent one and two more.
func sendAround(t require.TestingT, c *net.TCPConn) {
	_, err := c.Write([]byte("ab"))
	require.NoError(t, err)
	control(t, c, func(fd int) error { return unix.Sendto(fd, []byte("c"), unix.MSG_OOB, nil) })
	_, err = c.Write([]byte("de"))
	require.NoError(t, err)
}

// TestUrgentBytesStopNothing: a read ends in front of an urgent byte although more
// has arrived, and nothing else tells of what is after it. Signals, as the runtime sends
// them for preemption, change nothing.
func TestUrgentBytesStopNothing(t *testing.T) {
	p := newPair(t)
	for _, kind := range allCarriers {
		t.Run(kind.String(), func(t *testing.T) {
			c := p.dial(t, kind)
			defer c.closeApps()
			defer signalled(c.flow[0], c.flow[1])()
			for round := range 200 {
				from := round % 2
				f := c.flow[from]
				f.Shard.Call(func() { // a look at the first bytes sees all of them
					sendAround(t, c.app[from])
					arrived(t, f)
				})
				got := make([]byte, 5)
				require.NoError(t, c.app[1-from].SetReadDeadline(time.Now().Add(patience)))
				_, err := io.ReadFull(c.app[1-from], got)
				require.NoError(t, err, "round %d: %q", round, got)
				require.Equal(t, "abcde", string(got))
			}
		})
	}
}

// signalled sends SIGURG to the threads of flows again and again, until the function that it
// returns is called.
func signalled(flows ...*Flow) (stop func()) {
	var all sync.WaitGroup
	over := make(chan struct{})
	for _, f := range flows {
		var tid int
		f.Shard.Call(func() { tid = unix.Gettid() })
		all.Go(func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(50 * time.Microsecond):
					_ = unix.Tgkill(unix.Getpid(), tid, unix.SIGURG)
				}
			}
		})
	}
	return func() {
		close(over)
		all.Wait()
	}
}

// arrived waits until the flow's kernel has five bytes.
func arrived(t require.TestingT, f *Flow) {
	deadline := time.Now().Add(patience)
	for unread := 0; unread < 5; {
		var err error
		unread, err = unix.IoctlGetInt(f.leg.fd, unix.SIOCINQ)
		require.NoError(t, err)
		require.True(t, time.Now().Before(deadline))
	}
}

// TestRingUse: what an application does not take is seen in its ring at the next look, and
// what is on the way to it at the sender.
func TestRingUse(t *testing.T) {
	for _, kind := range rdmaCarriers {
		t.Run(kind.String(), func(t *testing.T) {
			p := newPair(t)
			a, b := newFakeWires(1<<20, 1<<20)
			c := p.dial(t, kind, a, b)
			require.NoError(t, c.app[0].SetWriteDeadline(time.Now().Add(patience)))
			sent := make(chan error, 1)
			go func() {
				_, err := c.app[0].Write(make([]byte, 32<<20)) // more than rings and socket buffers hold
				sent <- err
			}()
			by := report.Carrier(kind.String())
			var to, from report.RingUse
			require.Eventuallyf(t, func() bool {
				for _, g := range c.p.g {
					lookForStalls(g.all(), time.Hour)
				}
				to, from = p.g[1].snapshot().Rings[by], p.g[0].snapshot().Rings[by]
				return to.Size > 0 && to.Waiting > 0 && to.Waiting <= to.Size && from.Size > 0 && from.Unacknowledged > 0
			}, patience, 10*time.Millisecond, "to %+v, from %+v", &to, &from)
			require.NoError(t, c.app[0].Close())
			<-sent
			c.closeApps()
			require.Eventually(t, func() bool { return len(p.g[0].snapshot().Rings)+len(p.g[1].snapshot().Rings) == 0 }, patience, 10*time.Millisecond)
			for _, s := range p.g { // a connection leaves its ring before its duration is counted
				require.Eventually(t, func() bool { return s.snapshot().Durations[by].Count == 1 }, patience, 10*time.Millisecond)
			}
			c.over(t)
		})
	}
}
