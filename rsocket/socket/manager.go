package socket

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/cm"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

// manager is a communication manager: that of package cm on a device with queue pair 1, elsewhere the kernel's.
type manager interface {
	dial(ctx context.Context, p cm.DialParams) (joined, error)
	listen(local netip.AddrPort, backlog int) (requests, error)
	Close() error
}

// requests are those for connections to one port.
type requests interface {
	accept(ctx context.Context) (request, error)
	Addr() netip.AddrPort
	Close() error
}

// request is one of them, which accept or refuse answers.
type request interface {
	// private is what the peer says, of the queue pair that it has.
	private() ([]byte, error)
	// Established tells that data has arrived. Even a loop may call it.
	Established()
	accept(ctx context.Context, p cm.AcceptParams) (joined, error)
	refuse(reason cm.RejectReason)
}

// joined is a connection of queue pairs.
type joined interface {
	PrivateData() []byte
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
	Disconnect(ctx context.Context) error
	AfterDone(f func())
	Err() error
}

func joinedBy[C joined](c C, err error) (joined, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// openManager opens the manager that fits the device. Without the kernel's the stack has none: it connects out of band.
func (s *Stack) openManager() error {
	if s.cfg.NoCM || len(s.dev.Port().GIDs) == 0 {
		return nil
	}
	if s.dev.Attr().Ops&verbs.OpGSI == 0 {
		m, err := rdmacm.New(s.dev)
		if err != nil {
			s.noManager = err
			return nil
		}
		s.manager = kernelManager{m}
		return nil
	}
	c := s.cfg.CM
	c.Do, c.Vector = s.vectors[0].Do, 0
	m, err := cm.New(s.dev, c)
	if err != nil {
		return err
	}
	s.manager = ownManager{m}
	return nil
}

// managed returns the manager, or why there is none.
func (s *Stack) managed() (manager, error) {
	switch {
	case s.manager != nil:
		return s.manager, nil
	case s.noManager != nil:
		return nil, fmt.Errorf("%w: %w", ErrNoManager, s.noManager)
	default:
		return nil, ErrNoManager
	}
}

// ErrNoManager is a Dial or Listen on a stack without a communication manager.
var ErrNoManager = fmt.Errorf("no communication manager: %w", syscall.EOPNOTSUPP)

// ownManager is that of package cm.
type ownManager struct{ *cm.Manager }

func (m ownManager) dial(ctx context.Context, p cm.DialParams) (joined, error) {
	return joinedBy(m.Dial(ctx, p))
}

func (m ownManager) listen(local netip.AddrPort, backlog int) (requests, error) {
	l, err := m.Listen(local, cm.ListenConfig{Backlog: backlog})
	if err != nil {
		return nil, err
	}
	return ownRequests{l}, nil
}

type ownRequests struct{ *cm.Listener }

func (l ownRequests) accept(ctx context.Context) (request, error) {
	r, err := l.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return ownRequest{r}, nil
}

type ownRequest struct{ *cm.Request }

func (r ownRequest) private() ([]byte, error) {
	if r.Transport != cm.TransportRC {
		return nil, errTransport
	}
	return r.PrivateData, nil
}

func (r ownRequest) accept(ctx context.Context, p cm.AcceptParams) (joined, error) {
	return joinedBy(r.Accept(ctx, p))
}

func (r ownRequest) refuse(reason cm.RejectReason) { _ = r.Reject(reason, nil) } // a peer that has gone away needs none

// errTransport is a request for something else than a reliable connection.
var errTransport = errors.New("request for another transport")

// kernelManager is the kernel's.
type kernelManager struct{ *rdmacm.Manager }

func (m kernelManager) dial(ctx context.Context, p cm.DialParams) (joined, error) {
	return joinedBy(m.Dial(ctx, p))
}

func (m kernelManager) listen(local netip.AddrPort, backlog int) (requests, error) {
	l, err := m.Listen(local, cm.ListenConfig{Backlog: backlog})
	if err != nil {
		return nil, err
	}
	return kernelRequests{l}, nil
}

type kernelRequests struct{ *rdmacm.Listener }

func (l kernelRequests) accept(ctx context.Context) (request, error) {
	r, err := l.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return kernelRequest{r}, nil
}

type kernelRequest struct{ *rdmacm.Request }

func (r kernelRequest) private() ([]byte, error) { return r.PrivateData, nil }

func (r kernelRequest) accept(ctx context.Context, p cm.AcceptParams) (joined, error) {
	return joinedBy(r.Accept(ctx, p))
}

// refuse implements request. The kernel lets programs give no reason of their own.
func (r kernelRequest) refuse(cm.RejectReason) { _ = r.Reject(nil) }
