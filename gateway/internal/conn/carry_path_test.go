package conn

import (
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs/shm"
)

// pathSide is a gateway reduced to its data path: one shard, moved by the test,
// one shm device, and carries between sockets of the test and the other side.
type pathSide struct {
	env      *Env
	pool     *rmb.Pool
	s        *loop.Manual
	provider carrier.Provider
	addr     netip.Addr
	now      time.Time // of the test: how fast the machine is does not matter
}

func newPathSide(t testing.TB, dir string, id byte) *pathSide {
	log := slog.New(slog.DiscardHandler)
	cfg := config.Config{ShmDir: dir, Carriers: []report.DeviceKind{report.DeviceShm}}.WithDefaults()
	p := &pathSide{env: &Env{Log: log, GatewayID: [16]byte{id}}, addr: netip.AddrFrom4([4]byte{10, 0, 0, id}), now: time.Now()}
	var err error
	p.pool, err = rmb.NewPool(rmb.PoolConfig{})
	require.NoError(t, err)
	s, err := loop.New(0, log)
	require.NoError(t, err)
	p.s = &loop.Manual{Shard: s}
	providers, absent := carrier.Open(&carrier.Env{
		Config: cfg, Log: log, GatewayID: p.env.GatewayID, Shards: []*loop.Shard{s}, Pool: p.pool, Peers: peers.NewTable(cfg.Limits),
		PeerDown: func(*shm.Peer) {},
	})
	require.Empty(t, absent)
	p.provider = providers[0]
	p.s.RunPosted()
	t.Cleanup(func() {
		p.s.Halt()
		require.NoError(t, p.provider.Close())
		require.Zero(t, p.pool.Stats().Used)
		p.s.CloseFDs()
	})
	return p
}

func newPathPair(t testing.TB) (a, b *pathSide) {
	dir, err := os.MkdirTemp("/dev/shm", "smcgw-test-") //nolint:usetesting // in memory; short: the rendezvous is a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	a, b = newPathSide(t, dir, 1), newPathSide(t, dir, 2)
	t.Cleanup(func() {
		for deadline := time.Now().Add(5 * time.Second); a.pool.Stats().Used+b.pool.Stats().Used > 0; time.Sleep(time.Millisecond) {
			require.True(t, time.Now().Before(deadline))
			a.turn() // a ring that was asked for may still come, and all is freed after a turn of the peer
			b.turn()
		}
	})
	return a, b
}

// carry makes a carry to another side, without a link yet, and the application's end of
// its leg.
func (p *pathSide) carry(t testing.TB, to *pathSide) (*carry, int) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	f := &Flow{env: p.env, Opening: Opening{
		Shard: p.s.Shard, Tuple: host.Tuple{Local: netip.AddrPortFrom(p.addr, 1), Remote: netip.AddrPortFrom(to.addr, 1)},
	}}
	c := f.newCarry()
	c.fd = fds[0]
	t.Cleanup(func() {
		c.close()
		_, _ = unix.Close(fds[0]), unix.Close(fds[1])
	})
	return c, fds[1]
}

// connectPaths makes a flow from an application of one side to one of the other.
func connectPaths(t testing.TB, a, b *pathSide) (ca, cb *carry, appA, appB int) {
	ca, appA = a.carry(t, b)
	cb, appB = b.carry(t, a)
	var offer, answer negotiate.CarrierOffer
	var err error
	ca.Link, offer, err = a.provider.Offer(ca.f.request(ca))
	require.NoError(t, err)
	require.NoError(t, b.provider.Meet(t.Context(), a.addr, offer))
	b.provider.Answer(cb.f.request(cb), offer, &negotiate.Proposal{}, func(l *carrier.Link, to negotiate.CarrierOffer, cause error) {
		cb.Link, answer, err = l, to, cause
	})
	require.NoError(t, err)
	require.Eventually(t, a.provider.(*carrier.Shm).Peers()[0].Connected, 5*time.Second, time.Millisecond)
	ca.Connect(answer, func(cause error) { err = cause })
	require.NoError(t, err)
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
	t.Logf("rings of %d and %d bytes", bulkA.EP.RingSize(), bulkB.EP.RingSize())
	require.Equal(t, sent, received)
	require.NotZero(t, bulkA.f.tx.Load())

	require.Zero(t, testing.AllocsPerRun(100, func() { a.s.Spin(5 * time.Microsecond) }))
}

// TestRingGrowsUnderABulkFlow: the reader's ring becomes as large as it may and
// no byte is lost on the way; then it becomes small again.
func TestRingGrowsUnderABulkFlow(t *testing.T) {
	a, b := newPathPair(t)
	_, cb, in, out := connectPaths(t, a, b)
	const most = 4 << 20 // of a ring
	first := cb.EP.RingSize()
	buf := make([]byte, 1<<20)
	var sent, received uint64
	grown := first
	pass := func(n int) {
		for range 16 {
			chunk := buf[:min(n, len(buf)/2)]
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
		grown = max(grown, cb.EP.RingSize())
	}
	deadline := time.Now().Add(30 * time.Second)
	for grown < most && time.Now().Before(deadline) {
		pass(256 << 10)
	}
	require.Equal(t, most, grown)
	for cb.EP.RingSize() > first && time.Now().Before(deadline) {
		pass(4 << 10)
	}
	require.Equal(t, first, cb.EP.RingSize())
	for range 100 {
		pass(4 << 10)
	}
	require.Equal(t, sent, received)
	require.NoError(t, cb.EP.Err())
}
