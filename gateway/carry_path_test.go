package gateway

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

// pathSide is a gateway reduced to its data path: one shard, moved by the test,
// one shm device, and carries between sockets of the test and the other side.
type pathSide struct {
	g     *gateway
	s     *loop.Manual
	fab   *shmFabric
	peer  *shm.Peer
	arena *rmb.Arena
	now   time.Time // of the test: how fast the machine is does not matter
}

func newPathSide(t testing.TB, dir string, id byte) *pathSide {
	log := slog.New(slog.DiscardHandler)
	p := &pathSide{g: &gateway{log: log, id: [16]byte{id}, cfg: config.Config{}}, now: time.Now()}
	p.g.ctx, p.g.cancel = context.WithCancel(t.Context())
	var err error
	p.g.pool, err = rmb.NewPool(rmb.PoolConfig{})
	require.NoError(t, err)
	s, err := loop.New(0, log, loop.Options{})
	require.NoError(t, err)
	p.s = &loop.Manual{Shard: s}
	p.g.shards = []*loop.Shard{s}
	dev, err := shm.Open(shm.Config{
		Dir: dir, GatewayID: p.g.id, Vectors: 1, PeerQuota: 1 << 30, OnPeerDown: func(*shm.Peer) {}, Logger: log, PushBytes: 1,
	})
	require.NoError(t, err)
	_, err = dev.Listen()
	require.NoError(t, err)
	p.fab = &shmFabric{shm: dev}
	p.fab.driven, err = drive(p.g, dev)
	require.NoError(t, err)
	p.s.RunPosted()
	t.Cleanup(func() {
		p.g.cancel()
		p.g.wg.Wait()
		p.s.Halt()
		require.NoError(t, p.fab.driven.close())
		p.s.CloseFDs()
	})
	return p
}

func newPathPair(t testing.TB) (a, b *pathSide) {
	dir, err := os.MkdirTemp("/dev/shm", "smcgw-test-") //nolint:usetesting // in memory; short: the rendezvous is a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	a, b = newPathSide(t, dir, 1), newPathSide(t, dir, 2)
	a.peer, err = a.fab.shm.Offer()
	require.NoError(t, err)
	b.peer, err = b.fab.shm.Attach(t.Context(), a.peer.Name(), a.peer.Key())
	require.NoError(t, err)
	require.Eventually(t, a.peer.Connected, 5*time.Second, time.Millisecond)
	a.arena, b.arena = a.g.pool.Arena(a.peer.PD()), b.g.pool.Arena(b.peer.PD())
	t.Cleanup(func() {
		for _, p := range []*pathSide{a, b} {
			require.Eventually(t, func() bool { // a ring that was asked for may still come
				p.s.RunPosted()
				return p.arena.Close() == nil
			}, 5*time.Second, time.Millisecond)
		}
	})
	return a, b
}

// carry makes a carry and the application's end of its leg.
func (p *pathSide) carry(t testing.TB) (*carry, int) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	c, err := p.fab.prepare(&flow{g: p.g}, p.s.Shard, p.peer.PD(), p.arena)
	require.NoError(t, err)
	c.fabric, c.kind, c.settled, c.fd = p.fab, negotiate.CarrierSHM, func() { _ = c.ep.Release() }, fds[0]
	t.Cleanup(func() {
		c.close()
		_, _ = unix.Close(fds[0]), unix.Close(fds[1])
	})
	return c, fds[1]
}

// connectPaths makes a flow from an application of one side to one of the other.
func connectPaths(t testing.TB, a, b *pathSide) (ca, cb *carry, appA, appB int) {
	ca, appA = a.carry(t)
	cb, appB = b.carry(t)
	require.NoError(t, ca.attach(verbs.ConnectAttr(cb.qp.Num()), cb.connData()))
	require.NoError(t, cb.attach(verbs.ConnectAttr(ca.qp.Num()), ca.connData()))
	ca.start(ca.fd)
	cb.start(cb.fd)
	return ca, cb, appA, appB
}

// turn is what the loop does between two sleeps.
func (p *pathSide) turn() {
	p.now = p.now.Add(10 * time.Microsecond)
	for worked := true; worked; {
		worked = p.s.Step(p.now)
	}
	p.s.Flush()
}

func drainFD(t testing.TB, fd int, b []byte) (n int) {
	for {
		got, err := unix.Read(fd, b[n:])
		if err == unix.EAGAIN || n+got == len(b) {
			return n + max(got, 0)
		}
		require.NoError(t, err)
		n += got
	}
}

// TestTurnsDoNotAllocate: a bulk flow and a ping-pong flow on one shard, in both
// directions, with large rings and with small ones.
func TestTurnsDoNotAllocate(t *testing.T) {
	a, b := newPathPair(t)
	bulkA, bulkB, bulkInA, bulkOutB := connectPaths(t, a, b)
	_, _, pingA, pingB := connectPaths(t, a, b)
	chunk, out, small := make([]byte, 128<<10), make([]byte, 256<<10), make([]byte, 64)
	var sent, received int
	round := func() {
		for _, way := range [2][2]int{{bulkInA, bulkOutB}, {bulkOutB, bulkInA}} {
			n, err := unix.Write(way[0], chunk)
			if err != nil {
				t.Fatal(err)
			}
			sent += n
			for range 4 {
				a.turn()
				b.turn()
				received += drainFD(t, way[1], out)
			}
		}
		for _, way := range [2][2]int{{pingA, pingB}, {pingB, pingA}} {
			if _, err := unix.Write(way[0], small); err != nil {
				t.Fatal(err)
			}
			a.turn()
			b.turn()
			a.turn()
			if n := drainFD(t, way[1], out); n != len(small) {
				t.Fatalf("%d bytes of a message", n)
			}
		}
	}
	for range 200 {
		round()
	}
	settle := func() { // rings that were asked for are there
		for range 20 {
			time.Sleep(time.Millisecond)
			round()
		}
	}
	settle()
	require.Zero(t, testing.AllocsPerRun(100, round))
	t.Logf("rings of %d and %d bytes", bulkA.ep.RingSize(), bulkB.ep.RingSize())
	require.Equal(t, sent, received)
	require.NotZero(t, bulkA.f.reads.Load())

	require.Zero(t, testing.AllocsPerRun(100, func() { a.s.Spin(5 * time.Microsecond) }))
}

// TestRingGrowsUnderABulkFlow: the reader's ring becomes as large as it may and
// no byte is lost on the way; then it becomes small again.
func TestRingGrowsUnderABulkFlow(t *testing.T) {
	a, b := newPathPair(t)
	_, cb, in, out := connectPaths(t, a, b)
	first := cb.ep.RingSize()
	buf := make([]byte, 1<<20)
	var sent, received uint64
	grown := first
	pass := func(most int) {
		for range 16 {
			chunk := buf[:min(most, len(buf)/2)]
			for i := range chunk {
				chunk[i] = byte(sent+uint64(i)) ^ byte((sent+uint64(i))>>8)
			}
			n, err := unix.Write(in, chunk)
			if err == unix.EAGAIN {
				break
			}
			require.NoError(t, err)
			sent += uint64(n)
			a.turn()
		}
		b.turn()
		for n := 1; n > 0; {
			n = drainFD(t, out, buf[len(buf)/2:])
			for i, v := range buf[len(buf)/2:][:n] {
				at := received + uint64(i)
				if v != byte(at)^byte(at>>8) {
					t.Fatalf("wrong byte at %d", at)
				}
			}
			received += uint64(n)
			b.turn()
			a.turn()
		}
		grown = max(grown, cb.ep.RingSize())
	}
	deadline := time.Now().Add(30 * time.Second)
	for grown < largeRing && time.Now().Before(deadline) {
		pass(256 << 10)
	}
	require.Equal(t, largeRing, grown)
	for cb.ep.RingSize() > first && time.Now().Before(deadline) {
		pass(4 << 10)
	}
	require.Equal(t, first, cb.ep.RingSize())
	for range 100 {
		pass(4 << 10)
	}
	require.Equal(t, sent, received)
	require.NoError(t, cb.ep.Err())
}
