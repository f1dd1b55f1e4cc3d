package socket

import (
	"context"
	"net/netip"

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/rsocket/cm/kernel"
)

// kernelManager adapts the kernel's manager.
type kernelManager struct{ *kernel.Manager }

// Dial implements connManager.
func (m kernelManager) Dial(ctx context.Context, p cm.DialParams) (cmConn, error) {
	return cmConnOf(m.Manager.Dial(ctx, p))
}

// Listen implements connManager.
func (m kernelManager) Listen(local netip.AddrPort, backlog int) (cmListener, error) {
	l, err := m.Manager.Listen(local, cm.ListenConfig{Backlog: backlog})
	if err != nil {
		return nil, err
	}
	return kernelListener{l}, nil
}

type kernelListener struct{ *kernel.Listener }

// Accept implements cmListener.
func (l kernelListener) Accept(ctx context.Context) (cmRequest, error) {
	r, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return kernelRequest{r}, nil
}

type kernelRequest struct{ *kernel.Request }

// Private implements cmRequest.
func (r kernelRequest) Private() ([]byte, error) { return r.PrivateData, nil }

// Accept implements cmRequest.
func (r kernelRequest) Accept(ctx context.Context, p cm.AcceptParams) (cmConn, error) {
	return cmConnOf(r.Request.Accept(ctx, p))
}

// Refuse implements cmRequest. The kernel does not let programs choose the reason.
func (r kernelRequest) Refuse(cm.RejectReason) { _ = r.Reject(nil) }
