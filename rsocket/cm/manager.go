package cm

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// Manager is the communication manager of a device, which must have only one: it owns queue pair 1. Any goroutine may
// call its methods and those of what it makes, but unless they say otherwise not in the loop of a vector, because they
// wait for the loop.
type Manager struct {
	dev    verbs.Device
	cfg    Config
	gsi    *gsi
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	rearm  chan struct{} // holds a token when the earliest deadline may have changed

	mu     sync.Mutex // guards everything below; never held while waiting for a loop
	core   *core
	addrs  []netip.Addr
	port   uint16 // the last ephemeral port
	closed bool
}

// New makes the device's communication manager and starts it.
func New(dev verbs.Device, cfg Config) (*Manager, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("communication manager: %w", err)
	}
	m := &Manager{dev: dev, cfg: cfg.withDefaults(dev.Port()), rearm: make(chan struct{}, 1)}
	m.core = newCore(m.cfg, randomID, func() []netip.Addr { return m.addrs })
	m.port = uint16(randomID())
	m.refresh()
	var err error
	if m.gsi, err = newGSI(dev, m.cfg.Vector, m.cfg.Do); err != nil {
		return nil, fmt.Errorf("communication manager: %w", err)
	}
	var ctx context.Context
	ctx, m.cancel = context.WithCancel(context.Background())
	m.tasks.Add(2)
	go m.receive(ctx)
	go m.expire(ctx)
	return m, nil
}

// randomID returns a number that peers cannot guess.
func randomID() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:])
	return get32(b[:])
}

// Stats returns the counters.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.core.stats
	s.Connections, s.Listeners = len(m.core.conns), len(m.core.listeners)
	return s
}

// receive is the receiving goroutine.
func (m *Manager) receive(ctx context.Context) {
	defer m.tasks.Done()
	for {
		got, err := m.gsi.receive(ctx)
		if err != nil {
			if ctx.Err() == nil {
				m.end(fmt.Errorf("queue pair 1: %w", err))
			}
			return
		}
		m.act(func(now time.Time) {
			m.refresh()
			for _, in := range got {
				local := slices.Index(m.addrs, in.dst)
				if local < 0 {
					m.core.stats.Unknown++ // sent to an address that the device no longer has
					continue
				}
				m.core.receive(now, route{local, in.src}, in.mad)
			}
		})
	}
}

// expire is the timer goroutine.
func (m *Manager) expire(ctx context.Context) {
	defer m.tasks.Done()
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		m.mu.Lock()
		next := m.core.timers.Next()
		m.mu.Unlock()
		if next.IsZero() {
			t.Stop()
		} else {
			t.Reset(time.Until(next))
		}
		select {
		case <-t.C:
			m.act(m.core.expire)
		case <-m.rearm:
		case <-ctx.Done():
			return
		}
	}
}

// act runs f on the core and sends the resulting datagrams.
func (m *Manager) act(f func(now time.Time)) {
	m.mu.Lock()
	before := m.core.timers.Next()
	f(time.Now())
	rearm := m.core.timers.Next() != before
	send := len(m.core.out) > 0
	m.mu.Unlock()
	if rearm {
		signal(m.rearm)
	}
	if send {
		// If the loop is gone, so is the network.
		_ = m.gsi.run(m.flush)
	}
}

// flush runs in the loop.
func (m *Manager) flush() error {
	m.mu.Lock()
	out := m.core.out
	m.core.out = nil
	m.mu.Unlock()
	dropped := uint64(0)
	for i := range out {
		if !m.gsi.send(&out[i]) {
			dropped++
		}
	}
	if dropped > 0 {
		m.mu.Lock()
		m.core.stats.Dropped += dropped
		m.mu.Unlock()
	}
	return nil
}

// refresh updates the addresses of the device. The caller holds mu, or has not published m yet.
func (m *Manager) refresh() {
	gids := m.dev.Port().GIDs
	m.addrs = m.addrs[:0]
	for _, g := range gids {
		m.addrs = append(m.addrs, g.GID.Addr())
	}
}

// localRouteLocked returns the route from a local address to a peer. Without a local address it uses the first of the
// peer's IP version.
func (m *Manager) localRouteLocked(local, remote netip.Addr) (route, error) {
	m.refresh()
	local, remote = local.Unmap(), remote.Unmap().WithZone("")
	i := slices.IndexFunc(m.addrs, func(a netip.Addr) bool {
		if local.IsValid() && !local.IsUnspecified() {
			return a == local.WithZone("")
		}
		return a.Is4() == remote.Is4()
	})
	if i < 0 || !remote.IsValid() || m.addrs[i].Is4() != remote.Is4() {
		return route{}, fmt.Errorf("%v to %v: %w", local, remote, ErrAddrNotAvail)
	}
	return route{i, remote}, nil
}

// ephemeralLocked returns a port that is not used (RFC 6335, 6: 49152 to 65535).
func (m *Manager) ephemeralLocked(used func(port uint16) bool) (uint16, error) {
	for range 1 << 14 {
		m.port++
		if port := m.port | 0xc000; !used(port) {
			return port, nil
		}
	}
	return 0, ErrAddrInUse
}

// end ends all connections, listeners and attempts, and tells the peers.
func (m *Manager) end(why error) {
	m.act(func(now time.Time) {
		if m.closed {
			return
		}
		m.closed = true
		for _, l := range m.core.listeners {
			m.core.unlisten(l)
		}
		for _, x := range m.core.conns {
			x.abort(now, why)
		}
	})
}

// Close ends everything that the manager made: waiting calls return ErrClosed, the peers of connections are told once
// that they are over, and queue pairs are left to their owners. It returns after the manager's goroutines have ended.
func (m *Manager) Close() error {
	m.end(ErrClosed)
	m.cancel()
	m.tasks.Wait()
	// Let the last messages leave before the queue pair is closed.
	for range 50 {
		idle := true
		err := m.gsi.run(func() error {
			_, err := m.gsi.poll()
			idle = m.gsi.idle()
			return err
		})
		if err != nil || idle {
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	m.gsi.close()
	return nil
}

// wait returns when ready returns true, which it calls with mu held, after each change. Several goroutines may wait for
// the same channel: each passes the token on.
func (m *Manager) wait(ctx context.Context, changed chan struct{}, ready func() bool) error {
	for {
		m.mu.Lock()
		ok := ready()
		m.mu.Unlock()
		if ok {
			signal(changed)
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
