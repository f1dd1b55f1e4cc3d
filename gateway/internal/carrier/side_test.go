package carrier

import (
	"context"
	"flag"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
	"github.com/smcgw/smcgw/verbs/shm"
	"github.com/smcgw/smcgw/verbs/soft"
)

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("fd00::1")
	// sideAddrs are those of the hosts of two sides.
	sideAddrs = twohosts.Addrs()
)

// side is the carriers of one gateway.
type side struct {
	*Env
	shm  *Shm
	soft *Soft
	hw   *Hardware
	host *fakeHost
	addr netip.Addr

	mu      sync.Mutex
	links   []*Link // that Vacate may have to leave
	left    int     // links that have left
	returns []func()
}

// newSide opens the carriers of a gateway; percent is of what one peer may have.
func newSide(t testing.TB, dir string, addr netip.Addr, port, hwPort uint16, percent int) *side {
	t.Helper()
	cfg := config.Config{ShmDir: dir, Carriers: []report.DeviceKind{report.DeviceShm, report.DeviceHW, report.DeviceSoft}}
	cfg.HW = config.HW{TrafficClass: 104}
	cfg.Limits.HWFlows, cfg.Limits.HandshakeTimeout = 40, patience // for calls of adapters
	cfg.Soft.UDPPort, cfg.Limits.PeerShare = port, config.Share(percent*100)
	return openSide(t, cfg, func() ([]netip.Addr, error) { return []netip.Addr{addr}, nil }, nil, hwPort)
}

// openSide opens the carriers of a gateway that has addresses, and adapters; the fake one
// receives on hwPort.
func openSide(t testing.TB, cfg config.Config, addrs func() ([]netip.Addr, error), roce func() (sysfs.RoCEPorts, error), hwPort ...uint16) *side {
	t.Helper()
	all, err := addrs()
	require.NoError(t, err)
	host := &fakeHost{t: t, addr: all[0], maxCQE: 2*linkNeed() + 10, names: []string{"rxe0/1"}}
	for _, port := range hwPort {
		host.port = port
	}
	return openSideOn(t, cfg, addrs, roce, host)
}

// openSideOn opens the carriers of a gateway on a host with adapters.
func openSideOn(t testing.TB, cfg config.Config, addrs func() ([]netip.Addr, error), roce func() (sysfs.RoCEPorts, error), host Adapters) *side {
	t.Helper()
	cfg = cfg.WithDefaults()
	all, err := addrs()
	require.NoError(t, err)
	addr := all[0]
	pool, err := rmb.NewPool(rmb.PoolConfig{Limit: int64(cfg.Limits.Memory)})
	require.NoError(t, err)
	log := slog.New(slog.DiscardHandler)
	s, err := loop.New(0, log)
	require.NoError(t, err)
	sd := &side{addr: addr}
	var route func(from, to netip.Addr) (int, error)
	var administrator subnet
	switch h := host.(type) {
	case *fakeHost:
		sd.host, h.shards, route = h, []*loop.Shard{s}, h.route
	case *subnetHost:
		route, administrator = h.route, h
	}
	env := &Env{
		Config: cfg, Log: log, GatewayID: addr.As16(), Shards: []*loop.Shard{s}, Pool: pool, Peers: peers.NewTable(cfg.Limits),
		Addrs: addrs, RoCE: roce,
		PeerDown: func(*shm.Peer) {}, Vacate: sd.vacate, Withdrawn: func(verbs.Device) {}, Adapters: host, subnet: administrator, Route: route,
	}
	list, absent := Open(env)
	require.Empty(t, absent)
	s.Start()
	t.Cleanup(func() {
		s.Halt()
		s.Detach()
		for _, prov := range list {
			require.NoError(t, prov.Close())
		}
		s.CloseFDs()
	})
	sd.Env = env
	for _, prov := range list {
		switch prov := prov.(type) {
		case *Shm:
			sd.shm = prov
		case *Hardware:
			sd.hw = prov
		case *Soft:
			sd.soft = prov
		}
	}
	return sd
}

// carries notes a link that carries.
func (s *side) carries(l *Link) {
	s.on(l.Begin)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links = append(s.links, l)
}

// vacate has links leave as connections do. What they have to send again is kept until
// the test calls returns.
func (s *side) vacate(kind negotiate.CarrierKind, uses func(*Link) bool, _ bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.links {
		l.Shard.Post(func() {
			if l.Kind != kind || l.Closed() || !uses(l) {
				return
			}
			sent, written := l.Depart()
			written()
			s.mu.Lock()
			defer s.mu.Unlock()
			s.left++
			s.returns = append(s.returns, sent)
		})
	}
}

// gone is how many links have left.
func (s *side) gone() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left
}

// isEmpty reports whether no memory is in use. Pairs that wait for connections are dropped.
func (s *side) isEmpty() bool {
	if s.hw != nil {
		s.hw.forgetIdle(time.Now().Add(poolIdle))
	}
	return s.Pool.Stats().Used == 0
}

func newSides(t testing.TB, percent int) (sides [2]*side) {
	t.Helper()
	hwPort := twohosts.FreePort(t)
	for i, h := range twohosts.Hosts(t) {
		sides[i] = newSide(t, h.Dir, h.Addr, h.Port, hwPort, percent)
	}
	return sides
}

// on runs fn on the thread of the shard.
func (s *side) on(fn func()) { s.Shards[0].Call(fn) }

func (s *side) request(u User, remote netip.Addr) Request {
	return Request{User: u, Shard: s.Shards[0], Local: s.addr, Remote: remote}
}

// answer makes a server's link and waits for it.
func (s *side) answer(prov Provider, r Request, from negotiate.CarrierOffer, p *negotiate.Proposal) (l *Link, to negotiate.CarrierOffer, err error) {
	done := make(chan struct{})
	s.Shards[0].Post(func() {
		prov.Answer(r, from, p, func(made *Link, offer negotiate.CarrierOffer, cause error) {
			l, to, err = made, offer, cause
			close(done)
		})
	})
	<-done
	return l, to, err
}

// connect connects a link and waits for that.
func (s *side) connect(l *Link, to negotiate.CarrierOffer) error {
	done := make(chan error, 1)
	s.Shards[0].Post(func() { l.Connect(to, func(err error) { done <- err }) })
	return <-done
}

// prove begins the proof of a link and waits until the link is connected.
func (s *side) prove(l *Link, to negotiate.CarrierOffer) (warm bool, err error) {
	done := make(chan error, 1)
	s.Shards[0].Post(func() {
		l.Prove(to, time.Second, func(w bool, err error) {
			warm = w
			done <- err
		})
	})
	err = <-done
	return warm, err
}

// fakeUser is a connection that notes what its link says.
type fakeUser struct {
	ending                  bool
	asked, broken, violated atomic.Int32
	read, proved, keptAlive atomic.Int32
	failed                  atomic.Bool
}

func (u *fakeUser) Owner() loop.Owner { return u }
func (u *fakeUser) Panicked(r any)    { panic(r) }
func (u *fakeUser) Completed(ev rsocket.Events, ok bool) {
	if !ok {
		u.failed.Store(true)
	}
	if ev.Has(rsocket.EventReadable) {
		u.read.Add(1)
	}
	if ev.Has(rsocket.EventProved) {
		u.proved.Add(1)
	}
}
func (u *fakeUser) Broken()                      { u.broken.Add(1) }
func (u *fakeUser) Violated()                    { u.violated.Add(1) }
func (u *fakeUser) Ending() bool                 { return u.ending }
func (u *fakeUser) KeepAlive(time.Duration, int) { u.keptAlive.Add(1) }
func (u *fakeUser) Ask()                         { u.asked.Add(1) }

// linked is a link and its user on both sides.
type linked struct {
	link [2]*Link
	user [2]*fakeUser
	to   negotiate.CarrierOffer // the server's
}

// meet makes the links of a connection; the server's is connected.
func meet(t testing.TB, sides [2]*side, of func(*side) Provider) *linked {
	t.Helper()
	return meetOn(t, sides, of, [2]*Memory{})
}

// meetOn is meet for ends that may have memory of their own.
func meetOn(t testing.TB, sides [2]*side, of func(*side) Provider, own [2]*Memory) *linked {
	t.Helper()
	c := &linked{user: [2]*fakeUser{{}, {}}}
	client, server := of(sides[0]), of(sides[1])
	var offer negotiate.CarrierOffer
	var err error
	asks := sides[0].request(c.user[0], sides[1].addr)
	asks.Memory = own[0]
	c.link[0], offer, err = client.Offer(asks)
	require.NoError(t, err)
	p := &negotiate.Proposal{}
	if !server.Met(offer, p) {
		require.NoError(t, server.Meet(context.Background(), sides[0].addr, offer))
		require.True(t, server.Met(offer, p))
	}
	asks = sides[1].request(c.user[1], sides[0].addr)
	asks.Memory = own[1]
	c.link[1], c.to, err = sides[1].answer(server, asks, offer, p)
	require.NoError(t, err)
	return c
}

// providers are the devices of a side, by name.
var providers = map[string]func(*side) Provider{
	"shm":  func(s *side) Provider { return s.shm },
	"soft": func(s *side) Provider { return s.soft },
	"hw":   func(s *side) Provider { return s.hw },
}

// A device has a vector for each shard. On no host, and with no configuration, are there
// more shards than a device has room for: it would be left out.
func TestDevicesServeAllShards(t *testing.T) {
	for _, processors := range []int{1, 2, 33, 64, 192, 4096} {
		for _, configured := range []int{0, 1, config.MaxShards} {
			n := config.Config{Shards: configured}.Loops(processors)
			require.Positive(t, n)
			require.NoError(t, shm.Config{GatewayID: [16]byte{1}, Vectors: n}.Validate())
			require.NoError(t, soft.Config{Addrs: []netip.Addr{addrA}, Vectors: n}.Validate())
			require.NoError(t, hw.Config{Adapter: "mlx5_0", Vectors: n}.Validate())
		}
	}
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) {
	// Those that are parallel wait more than they compute.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(leak.Main(m))
}
