package gateway

import (
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/lab/wire"
)

// patience bounds the wait for what has to happen, on however slow a machine.
const patience = 30 * time.Second

// noLegs accepts and dials nothing: tests hand legs over themselves.
type noLegs struct{}

func (noLegs) Available() bool { return true }

func (noLegs) Note() string { return "" }

func (noLegs) Listen(host.Loop, func(int, host.Tuple)) (host.LegListener, error) {
	return noListener{}, nil
}

func (noLegs) Dial(on host.Loop, _ host.Tuple, _ host.Look, done func(int, error)) host.Dialling {
	return noDial(on.After(0, func() { done(-1, net.ErrClosed) }))
}

// noDial fails, unless it is ended before.
type noDial func()

func (d noDial) Cancel() { d() }

func (d noDial) Recall() bool {
	d()
	return true
}

type noListener struct{}

func (noListener) Close() error { return nil }

func (noListener) Arrived(then func()) { then() }

// testGateway is a gateway without datapath and applications, on a host with
// one address.
func testGateway(t testing.TB, shmDir string, addr netip.Addr, port uint16, steer *fakeSteering) *gateway {
	t.Helper()
	cfg := config.Config{Mode: report.ModeEnforce, CgroupPath: t.TempDir(), ShmDir: shmDir, StateDir: t.TempDir(), Shards: 1, Carriers: []report.DeviceKind{report.DeviceShm, report.DeviceSoft}}
	cfg.Soft.UDPPort = port
	cfg.Limits.Memory, cfg.Limits.PeerShare = 64<<20, config.AllShare // all of it: there are two hosts
	wire := wire.New(1500, 1)
	h := localHost{
		Steering: steer, Legs: noLegs{}, Link: wire.A(), ID: [16]byte{1},
		Addrs: func() ([]netip.Addr, error) { return []netip.Addr{addr}, nil },
	}
	g, err := newGateway(cfg.WithDefaults(), &site{localHost: h}, nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Empty(t, g.engine().absent)
	t.Cleanup(func() {
		g.close()
		wire.Close()
	})
	return g
}

// pairAddrs are the addresses of the client's and the server's host.
var pairAddrs = twohosts.Addrs()

// gatewayPair is two gateways under one kernel.
type gatewayPair struct {
	g     [2]*gateway
	steer [2]*fakeSteering
	port  uint16
}

func newGatewayPair(t testing.TB) *gatewayPair {
	t.Helper()
	p := &gatewayPair{port: 1000}
	for i, h := range twohosts.Hosts(t) {
		p.steer[i] = newFakeSteering()
		p.g[i] = testGateway(t, h.Dir, h.Addr, h.Port, p.steer[i])
	}
	return p
}

// unsteered is what fakeSteering has of a host without steering.
type unsteered struct{ host.Steering }

// fakeSteering keeps entries in a table.
type fakeSteering struct {
	*twohosts.Table
	unsteered
	behind func() // is called once, between a look and the use of what was seen

	mu       sync.Mutex // guards everything below
	mode     ebpf.Mode
	off      bool
	counters ebpf.Counters
	policy   []ebpf.Rule
	rollout  ebpf.Rollout
	compare  bool
	seen     []ebpf.Seen
	refuse   error // of SetPolicy

	refused   uint8     // of Refuse
	shed      uint8     // of Shed
	lingering []lingers // what Lingering tells, one after another, and the last from then on
}

// lingers is what Lingering tells.
type lingers struct {
	n   int
	err error
}

func newFakeSteering() *fakeSteering {
	return &fakeSteering{Table: twohosts.NewTable(), unsteered: unsteered{host.NewUnsteered(1)}}
}

// keep notes what the steering is told.
func keep[T any](s *fakeSteering, in *T, what T) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	*in = what
	return nil
}

func (s *fakeSteering) SetMode(m ebpf.Mode) error { return keep(s, &s.mode, m) }

func (s *fakeSteering) SetOff(off bool) error { return keep(s, &s.off, off) }

func (s *fakeSteering) Refuse(reason uint8) error { return keep(s, &s.refused, reason) }

func (s *fakeSteering) SetRollout(r ebpf.Rollout) error { return keep(s, &s.rollout, r) }

func (s *fakeSteering) TakeSeen() ([]ebpf.Seen, error) {
	s.mu.Lock()
	list := s.seen
	s.seen = nil
	s.mu.Unlock()
	s.looked()
	return list, nil
}

func (s *fakeSteering) looked() {
	if f := s.behind; f != nil {
		s.behind = nil
		f()
	}
}

func (s *fakeSteering) SetCompare(on bool) error { return keep(s, &s.compare, on) }

func (s *fakeSteering) Shed(reason uint8) error { return keep(s, &s.shed, reason) }

func (s *fakeSteering) Lingering() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var l lingers
	if len(s.lingering) > 0 {
		l = s.lingering[0]
		s.lingering = s.lingering[min(1, len(s.lingering)-1):]
	}
	return l.n, l.err
}

func (s *fakeSteering) SetPolicy(rules []ebpf.Rule) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse == nil {
		s.policy = rules
	}
	return s.refuse
}

func (s *fakeSteering) Counters() (ebpf.Counters, error) {
	s.mu.Lock()
	c := s.counters
	s.mu.Unlock()
	s.looked()
	return c, nil
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
