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

// ListenConfig configures Listen.
type ListenConfig struct {
	// PortSpace is the port space of the port. Default PortSpaceTCP.
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

var _ Listener = (*connListener)(nil)

// Listen accepts requests for a port, at one address of the device or, if local has none or an unspecified one, at all
// of them. Port 0 chooses one.
func (m *Manager) Listen(local netip.AddrPort, cfg ListenConfig) (Listener, error) {
	setDefault(&cfg.PortSpace, PortSpaceTCP)
	setDefault(&cfg.Backlog, DefaultBacklog)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	m.refresh()
	var key listenKey
	if a := local.Addr().Unmap().WithZone(""); a.IsValid() && !a.IsUnspecified() {
		if !slices.Contains(m.addrs, a) {
			return nil, fmt.Errorf("listen on %v: %w", local, ErrAddrNotAvail)
		}
		key.addr = a
	}
	port := local.Port()
	if port == 0 {
		var err error
		port, err = m.ephemeralLocked(func(port uint16) bool {
			key.service = ServiceOf(cfg.PortSpace, port)
			return m.core.listeners[key] != nil
		})
		if err != nil {
			return nil, err
		}
	}
	key.service = ServiceOf(cfg.PortSpace, port)
	l, err := m.core.listen(key, cfg.Backlog)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", local, err)
	}
	return &connListener{m, l, netip.AddrPortFrom(local.Addr(), port)}, nil
}

func (l *connListener) Addr() netip.AddrPort { return l.addr }

func (l *connListener) Accept(ctx context.Context) (*Request, error) {
	var x *conn
	err := l.m.wait(ctx, l.l.changed, func() bool {
		x = l.l.take()
		return x != nil || l.l.closed
	})
	if err == nil && x == nil {
		err = ErrClosed
	}
	if err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	return newRequest(l.m, x), nil
}

func (l *connListener) Close() error {
	l.m.act(func(time.Time) { l.m.core.unlisten(l.l) })
	return nil
}
