package memhost

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/smcgw/smcgw/netstack/link"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway"
	"github.com/smcgw/smcgw/gateway/host"
	"github.com/smcgw/smcgw/netstack"
	"github.com/smcgw/smcgw/packet"
)

var (
	_ host.Steering = (*Model)(nil)
	_ host.Legs     = (*Model)(nil)
)

// Model is the steering of one host, and the makers of the gateway's sockets.
// It serves one run of a gateway. Packets are decided under one lock and
// delivered without it.
type Model struct {
	host    *Host
	cfg     ebpf.Config
	policy  *ebpf.Policy
	tun     *link.Wire // the wire side: A is netstack's, B ours
	appLink *link.Pipe
	sockets *netstack.Host // the gateway's sockets
	pairs   *pairs
	start   time.Time
	events  chan ebpf.Event
	secret  maphash.Seed  // of cookies
	done    chan struct{} // closed by Close

	mu      sync.Mutex // guards everything below
	closed  bool
	mode    ebpf.Mode
	off     bool
	stalled bool
	shed    uint8         // peers begin nothing for this reason
	native  uint8         // everything stays native for this reason
	beat    time.Duration // 0: never, or the gateway is gone
	rng     *rand.Rand    // nonces
	flows   map[ebpf.Tuple]*ebpf.Flow
	notes   map[ebpf.Tuple]*note
	legs    map[ebpf.Tuple]*bridge
	peers   map[peerKey]*peer
	passed  map[netip.Addr]struct{} // addresses that have answered offers

	counts ebpf.Counters
	again  []byte // a SYN that leaves after the packet that is decided

	decisions map[int]decided // by rule
}

// newModel puts the steering on h. No offer is made before the first Heartbeat.
func newModel(h *Host, cfg ebpf.Config) (*Model, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("model config: %w", err)
	}
	m := &Model{
		host: h, cfg: withDefaults(cfg), start: time.Now(), mode: cfg.Mode, off: cfg.Off,
		events: make(chan ebpf.Event, eventLimit), secret: maphash.MakeSeed(), done: make(chan struct{}),
		rng:   rand.New(rand.NewPCG(h.net.cfg.Seed, uint64(h.v4.As4()[3]))),
		flows: map[ebpf.Tuple]*ebpf.Flow{}, notes: map[ebpf.Tuple]*note{},
		legs: map[ebpf.Tuple]*bridge{}, peers: map[peerKey]*peer{}, passed: map[netip.Addr]struct{}{},
		counts:    ebpf.Counters{Native: [2]map[uint8]uint64{{}, {}}, Stats: map[string]uint64{}},
		decisions: map[int]decided{},
	}
	var err error
	if m.policy, err = ebpf.CompilePolicy(m.cfg.Policy, m.cfg.NeverPorts); err != nil {
		return nil, err
	}
	m.policy.Rollout = m.cfg.Rollout
	if m.pairs, err = newPairs(); err != nil {
		return nil, err
	}
	m.appLink = link.NewPipe(h.net.cfg.MTU, m.appEgress)
	if m.sockets, err = netstack.NewHost(netstack.HostConfig{Link: m.appLink, Transparent: true}); err != nil {
		_ = m.pairs.close()
		return nil, fmt.Errorf("gateway sockets: %w", err)
	}
	m.tun = link.NewWire(h.net.cfg.MTU, h.net.cfg.Seed)
	m.tun.B().Handle(m.fromUser)
	h.model.Store(m)
	return m, nil
}

// withDefaults fills in what the model uses of the configuration, with the
// values of package ebpf.
func withDefaults(c ebpf.Config) ebpf.Config {
	set(&c.BlackholeAfter, 2)
	set(&c.Retry, time.Hour)
	set(&c.HeartbeatTimeout, 200*time.Millisecond)
	set(&c.MaxFlows, 1<<16)
	set(&c.MaxPeers, 1<<14)
	if c.NeverPorts == nil {
		c.NeverPorts = ebpf.DefaultNeverPorts()
	}
	return c
}

func set[T comparable](field *T, def T) {
	var zero T
	if *field == zero {
		*field = def
	}
}

// GatewayHost is what gateway.RunOn needs of the host.
func (m *Model) GatewayHost(kernel [16]byte) gateway.Host {
	return gateway.Host{Steering: m, Legs: m, Link: m.tun.A(), ID: kernel}
}

// now is the clock of the entries.
func (m *Model) now() time.Duration { return time.Since(m.start) + 1 }

// aliveLocked reports whether the heartbeat is fresh.
func (m *Model) aliveLocked() bool { return m.beat != 0 && m.now() < m.beat+m.cfg.HeartbeatTimeout }

// lateFor is LATE_NS of the programs.
const lateFor = 3 * time.Second

// lateLocked reports whether the heartbeat is old, but not so old that the gateway is
// gone.
func (m *Model) lateLocked() bool { return !m.aliveLocked() && m.beat != 0 && m.now() < m.beat+lateFor }

// Alive reports whether the gateway's heartbeat is fresh.
func (m *Model) Alive() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.aliveLocked()
}

// Heartbeat implements host.Steering.
func (m *Model) Heartbeat() error {
	return m.change(func() {
		if !m.stalled {
			m.beat = m.now()
		}
	})
}

// SetMode implements host.Steering.
func (m *Model) SetMode(mode ebpf.Mode) error { return m.change(func() { m.mode = mode }) }

// SetOff implements host.Steering.
func (m *Model) SetOff(off bool) error { return m.change(func() { m.off = off }) }

// SetPolicy implements host.Steering.
func (m *Model) SetPolicy(rules []ebpf.Rule) error {
	p, err := ebpf.CompilePolicy(rules, m.cfg.NeverPorts)
	if err != nil {
		return err
	}
	return m.change(func() {
		p.Rollout = m.policy.Rollout
		m.policy = p
	})
}

// SetRollout implements host.Steering.
func (m *Model) SetRollout(r ebpf.Rollout) error {
	return m.change(func() {
		p := *m.policy
		p.Rollout = r
		m.policy = &p
	})
}

// TakeSeen implements host.Steering: a model always carries.
func (*Model) TakeSeen() ([]ebpf.Seen, error) { return nil, nil }

// SetCompare implements host.Steering: only programs of a kernel can look at sockets of
// applications from their connect() to their end.
func (*Model) SetCompare(bool) error { return nil }

// TakeCompared implements host.Steering.
func (*Model) TakeCompared() ([]ebpf.Compared, error) { return nil, nil }

// change runs fn under the lock unless the model is closed.
func (m *Model) change(fn func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errClosed
	}
	fn()
	return nil
}

// SetProofs implements host.Steering: peers here are few.
func (*Model) SetProofs(int) error { return nil }

// Shed implements host.Steering.
func (m *Model) Shed(reason uint8) error { return m.change(func() { m.shed = reason }) }

// Refuse implements host.Steering.
func (m *Model) Refuse(reason uint8) error { return m.change(func() { m.native = reason }) }

// BlockedLegs implements host.Steering: nothing is in the way.
func (*Model) BlockedLegs() []ebpf.BlockedLegs { return nil }

// ProveAgain implements host.Steering.
func (*Model) ProveAgain() {}

// Lingering implements host.Steering: what was written is delivered.
func (*Model) Lingering() (int, error) { return 0, nil }

// Stall stops the gateway as SIGSTOP does: its heartbeat is not written any
// more, and nothing passes between it and the wire.
func (m *Model) Stall(stalled bool) error { return m.change(func() { m.stalled = stalled }) }

// InjectApp implements host.Steering: our option is taken out of the SYN. It
// stands in one queue with what netstack sends, so that a bare SYN leaves after
// the reset before it.
func (m *Model) InjectApp(pkt []byte) error {
	p := append([]byte{injected}, pkt...)
	if _, err := packet.StripOption(p[1:]); err != nil {
		return fmt.Errorf("inject: %w", err)
	}
	if err := packet.SetTCPChecksum(p[1:]); err != nil {
		return fmt.Errorf("inject: %w", err)
	}
	return m.change(func() { m.tun.A().Send(p) })
}

// injected marks, in front of it, a packet of InjectApp; no IP packet begins so.
const injected = 0

// DestroySocket implements host.Steering.
func (m *Model) DestroySocket(t ebpf.Tuple) (bool, error) {
	return m.sockets.Destroy(t.Remote, t.Local), nil
}

// LegWaits implements host.Steering. No segment is lost between applications and gateway
// here: what is there is accepted.
func (m *Model) LegWaits(ebpf.Tuple) (bool, error) { return false, nil }

// ForgetRequest implements host.Steering. A dial here is given up by a reset, which ends it.
func (m *Model) ForgetRequest(ebpf.Tuple) (bool, error) { return false, nil }

// ForgetTimeWait implements host.Steering. The applications' kernel here
// accepts a new connection on a tuple in TIME_WAIT.
func (m *Model) ForgetTimeWait(ebpf.Tuple) (bool, error) { return false, nil }

// Remember implements host.Steering.
func (m *Model) Remember(addr netip.Addr, port uint16, reason uint8, ttl time.Duration) error {
	if reason == 0 || ttl <= 0 || !addr.IsValid() {
		return fmt.Errorf("peer %v: reason %d for %v", addr, reason, ttl)
	}
	return m.change(func() {
		m.putPeerLocked(peerKey{addr.Unmap(), port}, peer{until: m.now() + ttl, reason: reason})
	})
}

// Events implements host.Steering. Unlike the programs' buffer it delivers
// native decisions at once.
func (m *Model) Events(ctx context.Context, fn func(ebpf.Event)) error {
	for {
		select {
		case e := <-m.events:
			fn(e)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-m.done:
			return errClosed
		}
	}
}

// Close implements host.Steering: every connection that is carried is reset,
// and the host is as if the model had never been there.
func (m *Model) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	m.beat = 0 // SYNs of unfinished handshakes go to the kernel from here on
	m.mu.Unlock()
	m.endLegs()
	err := m.sockets.Close() // its last resets still pass the tables
	m.host.model.CompareAndSwap(m, nil)
	m.tun.Close()
	close(m.done)
	return errors.Join(err, m.pairs.close())
}
