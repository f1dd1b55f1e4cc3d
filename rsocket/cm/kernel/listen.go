package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

// listener implements cm.Listener.
type listener struct {
	id       *identifier
	addr     netip.AddrPort
	requests chan event // filled by id's event handler
	life     context.Context
	end      context.CancelCauseFunc
}

// Listen accepts requests for a port, at one address of the device or, if local has none or an unspecified one, at all
// addresses of the host. Port 0 chooses one. If the backlog is full, the kernel refuses requests.
func (m *Manager) Listen(local netip.AddrPort, cfg cm.ListenConfig) (cm.Listener, error) {
	if cfg.Backlog == 0 {
		cfg.Backlog = cm.DefaultBacklog
	}
	if cfg.PortSpace == 0 {
		cfg.PortSpace = cm.PortSpaceTCP
	}
	l, err := m.listen(local, cfg)
	if err != nil {
		return nil, fmt.Errorf("listen on %v: %w", local, err)
	}
	return l, nil
}

func (m *Manager) listen(local netip.AddrPort, cfg cm.ListenConfig) (*listener, error) {
	if a := local.Addr(); a.IsValid() && !a.IsUnspecified() && verbs.GIDIndex(m.dev.Port().GIDs, verbs.GIDOf(a), 0) < 0 {
		return nil, cm.ErrAddrNotAvail
	}
	d, err := m.create(cfg.PortSpace)
	if err != nil {
		return nil, err
	}
	l := &listener{id: d, requests: make(chan event, cfg.Backlog)}
	l.life, l.end = context.WithCancelCause(context.Background())
	d.follow(l.event, l.end)
	port, err := d.bind(local)
	if err == nil {
		err = d.do(listen{id: d.handle, backlog: uint32(cfg.Backlog)})
	}
	if err != nil {
		d.destroy()
		return nil, err
	}
	l.addr = netip.AddrPortFrom(local.Addr(), port)
	return l, nil
}

// bind binds a listener and returns its port. Without an address it listens on both IPv6 and IPv4 if the host has IPv6.
func (d *identifier) bind(local netip.AddrPort) (port uint16, err error) {
	bound := func(a netip.AddrPort) error {
		s, err := rdmacm.SockaddrOf(a)
		if err != nil {
			return err
		}
		err = d.do(bind{id: d.handle, addr: s})
		if a.Addr().IsUnspecified() && errors.Is(err, syscall.EADDRNOTAVAIL) {
			err = cm.ErrAddrInUse // another listener has one of the addresses
		}
		return err
	}
	if local.Addr().IsValid() {
		err = bound(local)
	} else {
		err = bound(netip.AddrPortFrom(netip.IPv6Unspecified(), local.Port()))
		if errors.Is(err, syscall.EAFNOSUPPORT) {
			err = bound(netip.AddrPortFrom(netip.IPv4Unspecified(), local.Port()))
		}
	}
	if err != nil {
		return 0, err
	}
	a, err := d.addrs()
	return a.src.Port(), err
}

// event queues a request, or refuses it if the backlog is full.
func (l *listener) event(ev event) {
	if ev.Kind != rdmacm.ConnectRequest {
		if err := ev.failure(); err != nil {
			l.end(err)
			l.id.destroy() // the device waits for it
		}
		return
	}
	if l.life.Err() == nil {
		select {
		case l.requests <- ev:
			return
		default:
		}
	}
	l.id.m.refuse(ev.ID)
}

// Addr implements cm.Listener.
func (l *listener) Addr() netip.AddrPort { return l.addr }

// Accept implements cm.Listener.
func (l *listener) Accept(ctx context.Context) (*cm.Request, error) {
	for {
		var ev event
		err := context.Cause(l.life)
		if err == nil {
			select {
			case ev = <-l.requests:
			case <-l.life.Done():
				err = context.Cause(l.life)
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("accept: %w", err)
		}
		r, err := l.id.m.newRequest(&ev)
		if err == nil {
			return r, nil
		}
		// The request was for another device, or has been withdrawn.
	}
}

// Close implements cm.Listener. It is idempotent.
func (l *listener) Close() error {
	l.end(cm.ErrClosed)
	l.id.destroy()
	l.id.mu.Lock() // wait for a running handler; later ones see the end
	defer l.id.mu.Unlock()
	for {
		select {
		case ev := <-l.requests:
			l.id.m.refuse(ev.ID)
		default:
			return nil
		}
	}
}
