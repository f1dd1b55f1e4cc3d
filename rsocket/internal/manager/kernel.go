package manager

import (
	"context"
	"net/netip"

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/rsocket/cm/kernel"
)

// kernelManager is the kernel's manager.
type kernelManager struct{ *kernel.Manager }

// Dial implements Manager.
func (m kernelManager) Dial(ctx context.Context, p cm.DialParams) (Conn, error) {
	return connOf(m.Manager.Dial(ctx, p))
}

// Listen implements Manager.
func (m kernelManager) Listen(local netip.AddrPort, backlog int) (Listener, error) {
	l, err := m.Manager.Listen(local, cm.ListenConfig{Backlog: backlog})
	if err != nil {
		return nil, err
	}
	return kernelListener{l}, nil
}

type kernelListener struct{ *kernel.Listener }

// Accept implements Listener.
func (l kernelListener) Accept(ctx context.Context) (Request, error) {
	r, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return kernelRequest{r}, nil
}

type kernelRequest struct{ *kernel.Request }

// Private implements Request.
func (r kernelRequest) Private() ([]byte, error) { return r.PrivateData, nil }

// Accept implements Request.
func (r kernelRequest) Accept(ctx context.Context, p cm.AcceptParams) (Conn, error) {
	return connOf(r.Request.Accept(ctx, p))
}

// Refuse implements Request. The kernel lets programs give no reason of their own.
func (r kernelRequest) Refuse(cm.RejectReason) { _ = r.Reject(nil) }
