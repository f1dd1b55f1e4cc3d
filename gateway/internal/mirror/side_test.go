package mirror_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/mirror"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/shared"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

const patience = 30 * time.Second

// gateway is what an end needs of one.
type gateway struct {
	addr  netip.Addr
	shard *loop.Shard
	hub   *mirror.Hub
	pool  *rmb.Pool
	prov  map[negotiate.CarrierKind]*noting
}

// noting is a provider that notes its links, so that they can be broken.
type noting struct {
	carrier.Provider
	mu    sync.Mutex
	links []*carrier.Link
}

func (n *noting) note(l *carrier.Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links = append(n.links, l)
}

func (n *noting) Offer(r carrier.Request) (*carrier.Link, negotiate.CarrierOffer, error) {
	l, o, err := n.Provider.Offer(r)
	if err == nil {
		n.note(l)
	}
	return l, o, err
}

func (n *noting) Answer(r carrier.Request, from negotiate.CarrierOffer, p *negotiate.Proposal, done carrier.Answered) {
	n.Provider.Answer(r, from, p, func(l *carrier.Link, o negotiate.CarrierOffer, err error) {
		if err == nil {
			n.note(l)
		}
		done(l, o, err)
	})
}

// last is the link that was made last.
func (n *noting) last() *carrier.Link {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.links[len(n.links)-1]
}

// breakLast has the queue pair of the last link fail.
func (n *noting) breakLast() {
	l := n.last()
	l.Shard.Post(func() {
		if !l.Closed() {
			_ = l.QP.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState)
		}
	})
}

// newGateways opens those of two hosts.
func newGateways(t testing.TB) (gws [2]*gateway) {
	t.Helper()
	for i, h := range twohosts.Hosts(t) {
		gws[i] = newGateway(t, h)
	}
	return gws
}

func newGateway(t testing.TB, h twohosts.Host) *gateway {
	t.Helper()
	cfg := config.Config{ShmDir: h.Dir, Carriers: []report.DeviceKind{report.DeviceShm, report.DeviceSoft}}
	cfg.Soft.UDPPort = h.Port
	cfg = cfg.WithDefaults()
	pool, err := rmb.NewPool(rmb.PoolConfig{Limit: int64(cfg.Limits.Memory)})
	require.NoError(t, err)
	log := slog.New(slog.DiscardHandler)
	s, err := loop.New(0, log)
	require.NoError(t, err)
	g := &gateway{addr: h.Addr, shard: s, pool: pool, prov: map[negotiate.CarrierKind]*noting{}}
	env := &carrier.Env{
		Config: cfg, Log: log, GatewayID: h.Addr.As16(), Shards: []*loop.Shard{s}, Pool: pool, Peers: peers.NewTable(cfg.Limits),
		Addrs: func() ([]netip.Addr, error) { return []netip.Addr{h.Addr}, nil }, PeerDown: func(*shm.Peer) {},
		Vacate: func(negotiate.CarrierKind, func(*carrier.Link) bool, bool) {}, Withdrawn: func(verbs.Device) {},
	}
	list, absent := carrier.Open(env)
	require.Empty(t, absent)
	for _, p := range list {
		g.prov[p.Kind()] = &noting{Provider: p}
	}
	g.hub = mirror.NewHub(s)
	s.Start()
	t.Cleanup(func() {
		require.Eventually(t, func() bool { return pool.Stats().Used == 0 }, patience, time.Millisecond, "the memory is back")
		g.hub.Stop()
		s.Halt()
		s.Detach()
		for _, p := range list {
			require.NoError(t, p.Close())
		}
		s.CloseFDs()
	})
	return g
}

// owner notes what an end tells.
type owner struct {
	t       testing.TB
	said    chan mirror.Said
	drained chan [2]uint64 // bytes, read
	lost    chan negotiate.Reason
	panics  chan any
}

func newOwner(t testing.TB) *owner {
	return &owner{t, make(chan mirror.Said, 100), make(chan [2]uint64, 1), make(chan negotiate.Reason, 1), make(chan any, 1)}
}

func (o *owner) Panicked(r any)                     { o.panics <- r }
func (o *owner) Said(s mirror.Said)                 { o.said <- s }
func (o *owner) Drained(n, read uint64, _ bool)     { o.drained <- [2]uint64{n, read} }
func (o *owner) Lost(why negotiate.Reason, _ error) { o.lost <- why }

// expect waits for what an owner is told.
func expect[T any](t testing.TB, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatal("nothing is said: " + what)
	}
	return v
}

// side is an end with its owner and its library.
type side struct {
	*mirror.End
	*owner
	lib *library
	gw  *gateway
}

// newDesk is the desk of a process, and what the gateway has of it.
func newDesk(t testing.TB) *fakeDesk {
	t.Helper()
	m, err := shared.NewMemory("desk", inprocess.DeskSize, shared.Head(8), 0)
	require.NoError(t, err)
	page, err := unix.Mmap(m.Write, 0, inprocess.DeskSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	d, err := mirror.OpenDesk(m.Read)
	require.NoError(t, err)
	m.Close()
	t.Cleanup(func() {
		require.NoError(t, d.Close())
		require.NoError(t, unix.Munmap(page))
	})
	return &fakeDesk{page: page, of: d}
}

// sockets is a TCP connection of which each end has one byte unread.
func sockets(t testing.TB) (fds [2]int) {
	t.Helper()
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(l)
	require.NoError(t, unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, unix.Listen(l, 1))
	at, err := unix.Getsockname(l)
	require.NoError(t, err)
	fds[0], err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Connect(fds[0], at))
	fds[1], _, err = unix.Accept4(l, unix.SOCK_CLOEXEC)
	require.NoError(t, err)
	for i := range fds {
		_, err = unix.Write(fds[i], []byte{0})
		require.NoError(t, err)
	}
	return fds
}

// newSide makes an end of a connection between two gateways.
func newSide(t testing.TB, gws [2]*gateway, i int, order uint32, fd int) *side {
	t.Helper()
	return newSideOf(t, gws, i, order, fd, newDesk(t))
}

// newSideOf is newSide for a process.
func newSideOf(t testing.TB, gws [2]*gateway, i int, order uint32, fd int, desk *fakeDesk) *side {
	t.Helper()
	s := &side{owner: newOwner(t), gw: gws[i]}
	dup, _ := unix.Dup(fd)
	end, files, err := mirror.New(mirror.Config{
		ID: 7, Side: uint32(i), Order: order, Nonces: [2][inprocess.NonceSize]byte{{byte(1 + i)}, {byte(2 - i)}},
		Local: gws[i].addr, Remote: gws[1-i].addr, Desk: desk.of, Hub: gws[i].hub, Owner: s.owner,
	})
	require.NoError(t, err)
	end.Rings(dup)
	s.End, s.lib = end, newLibrary(t, files, order, fd, desk)
	t.Cleanup(func() {
		s.Close(func() {})
		s.gw.shard.Call(func() {})
		s.lib.close()
		require.Empty(t, s.panics)
	})
	return s
}

// connect makes a connection between two gateways that is carried by a device.
func connect(t testing.TB, gws [2]*gateway, kind negotiate.CarrierKind, order uint32) (sides [2]*side) {
	t.Helper()
	return connectProcesses(t, gws, kind, order, [2]*fakeDesk{newDesk(t), newDesk(t)})
}

// connectProcesses is connect for two processes.
func connectProcesses(t testing.TB, gws [2]*gateway, kind negotiate.CarrierKind, order uint32, desks [2]*fakeDesk) (sides [2]*side) {
	t.Helper()
	for i, fd := range sockets(t) {
		sides[i] = newSideOf(t, gws, i, order, fd, desks[i])
	}
	offer, err := sides[0].Offer(gws[0].prov[kind])
	require.NoError(t, err)
	p := &negotiate.Proposal{}
	if server := gws[1].prov[kind]; !server.Met(offer, p) {
		require.NoError(t, server.Meet(context.Background(), gws[0].addr, offer))
	}
	type answer struct {
		offer negotiate.CarrierOffer
		err   error
	}
	answered, proved := make(chan answer, 1), make(chan error, 1)
	sides[1].Answer(gws[1].prov[kind], offer, p, func(o negotiate.CarrierOffer, err error) { answered <- answer{o, err} })
	a := expect(t, answered, "answer")
	require.NoError(t, a.err)
	sides[0].Prove(a.offer, patience, func(err error) { proved <- err })
	require.NoError(t, expect(t, proved, "proof"))
	for _, s := range sides {
		s.Start()
	}
	return sides
}

// kinds are the devices of the tests.
var kinds = map[string]negotiate.CarrierKind{"shm": negotiate.CarrierSHM, "soft": negotiate.CarrierSoft}

// pattern is what travels: the byte at position p is pattern[p % len(pattern)].
var pattern = func() []byte {
	b := make([]byte, 99991)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	return b
}()

// send writes bytes of the pattern until there are total, in pieces of random sizes.
func (s *side) send(total uint64, largest int, pause func()) error {
	for l := s.lib; l.head < total; {
		from := pattern[l.head%uint64(len(pattern)):]
		b := from[:min(1+rand.Uint64N(uint64(largest)), uint64(len(from)), total-l.head)]
		n, err := l.write(b)
		if err != nil || n < len(b) {
			return err
		}
		pause()
	}
	return nil
}

// receive reads until there are total bytes or there come no more, and compares.
func (s *side) receive(total uint64, largest int, pause func()) error {
	for l := s.lib; l.tail < total; {
		b, err := l.span()
		if err != nil || len(b) == 0 {
			return err
		}
		want := pattern[l.tail%uint64(len(pattern)):]
		n := min(1+rand.IntN(largest), len(b), len(want))
		if string(b[:n]) != string(want[:n]) {
			return fmt.Errorf("wrong bytes at %d", l.tail)
		}
		l.take(n)
		pause()
	}
	return nil
}

// exchange moves bytes both ways at once.
func exchange(sides [2]*side, total uint64, largest int, pause func()) (errs []error) {
	var wg sync.WaitGroup
	all := make([]error, 4)
	for i, s := range sides {
		wg.Go(func() { all[2*i] = s.send(total, largest, pause) })
		wg.Go(func() { all[2*i+1] = s.receive(total, largest, pause) })
	}
	wg.Wait()
	return all
}
