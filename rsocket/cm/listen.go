package cm

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// DefaultBacklog is the default of ListenConfig.Backlog.
const DefaultBacklog = 128

// ListenConfig configures Listen and ListenUD.
type ListenConfig struct {
	// PortSpace is the port space of the port. Default PortSpaceTCP, for ListenUD PortSpaceUDP.
	PortSpace PortSpace
	// Backlog is how many requests may wait for Accept; further ones are refused with RejectNoResources. Default
	// DefaultBacklog.
	Backlog int
}

// Listener receives requests for connections.
type Listener interface {
	// Addr returns the address listened on, with the port that was chosen.
	Addr() netip.AddrPort
	// Accept waits for the next request, which the caller must answer.
	Accept(ctx context.Context) (*Request, error)
	// Close stops listening and refuses the requests that were not taken.
	Close() error
}

// connListener implements Listener.
type connListener struct {
	m    *Manager
	l    *listener
	addr netip.AddrPort
}

// Listen accepts requests for a port, at one address of the device or, if local has none or an unspecified one, at all
// of them. Port 0 chooses one.
func (m *Manager) Listen(local netip.AddrPort, cfg ListenConfig) (Listener, error) {
	setDefault(&cfg.PortSpace, PortSpaceTCP)
	l, addr, err := m.listen(local, cfg, false)
	if err != nil {
		return nil, err
	}
	return &connListener{m, l, addr}, nil
}

func (m *Manager) listen(local netip.AddrPort, cfg ListenConfig, datagrams bool) (l *listener, at netip.AddrPort, err error) {
	setDefault(&cfg.Backlog, DefaultBacklog)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, at, ErrClosed
	}
	m.refresh()
	key := listenKey{datagrams: datagrams}
	if a := local.Addr().Unmap().WithZone(""); a.IsValid() && !a.IsUnspecified() {
		if !slices.Contains(m.addrs, a) {
			return nil, at, fmt.Errorf("listen on %v: %w", local, ErrAddrNotAvail)
		}
		key.addr = a
	}
	port := local.Port()
	if port == 0 {
		port, err = m.ephemeralLocked(func(port uint16) bool {
			key.service = ServiceOf(cfg.PortSpace, port)
			return m.core.listeners[key] != nil
		})
		if err != nil {
			return nil, at, err
		}
	}
	key.service = ServiceOf(cfg.PortSpace, port)
	if l, err = m.core.listen(key, cfg.Backlog); err != nil {
		return nil, at, fmt.Errorf("%v: %w", local, err)
	}
	return l, netip.AddrPortFrom(local.Addr(), port), nil
}

// Addr implements Listener.
func (l *connListener) Addr() netip.AddrPort { return l.addr }

// Accept implements Listener.
func (l *connListener) Accept(ctx context.Context) (*Request, error) {
	x, err := l.m.next(ctx, l.l)
	if err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	return newRequest(l.m, x.(*conn)), nil
}

// next waits for something in a listener's queue.
func (m *Manager) next(ctx context.Context, l *listener) (x any, err error) {
	err = m.wait(ctx, l.changed, func() bool {
		x = l.take()
		return x != nil || l.closed
	})
	if err == nil && x == nil {
		err = ErrClosed
	}
	return x, err
}

// Close implements Listener.
func (l *connListener) Close() error {
	l.m.unlisten(l.l)
	return nil
}

func (m *Manager) unlisten(l *listener) {
	m.act(func(now time.Time) { m.core.unlisten(now, l) })
}
