package socket

import (
	"context"
	"errors"
	"net/netip"

	"github.com/smcgw/smcgw/rsocket/cm"
)

// ownManager adapts the manager of package cm.
type ownManager struct{ *cm.Manager }

// Dial implements connManager.
func (m ownManager) Dial(ctx context.Context, p cm.DialParams) (cmConn, error) {
	return cmConnOf(m.Manager.Dial(ctx, p))
}

// Listen implements connManager.
func (m ownManager) Listen(local netip.AddrPort, backlog int) (cmListener, error) {
	l, err := m.Manager.Listen(local, cm.ListenConfig{Backlog: backlog})
	if err != nil {
		return nil, err
	}
	return ownListener{l}, nil
}

type ownListener struct{ *cm.Listener }

// Accept implements cmListener.
func (l ownListener) Accept(ctx context.Context) (cmRequest, error) {
	r, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return ownRequest{r}, nil
}

type ownRequest struct{ *cm.Request }

// Private implements cmRequest.
func (r ownRequest) Private() ([]byte, error) {
	if r.Transport != cm.TransportRC {
		return nil, errTransport
	}
	return r.PrivateData, nil
}

// Accept implements cmRequest.
func (r ownRequest) Accept(ctx context.Context, p cm.AcceptParams) (cmConn, error) {
	return cmConnOf(r.Request.Accept(ctx, p))
}

// Refuse implements cmRequest. An error is ignored: a peer that is gone needs no answer.
func (r ownRequest) Refuse(reason cm.RejectReason) { _ = r.Reject(reason, nil) }

// errTransport is a request for a transport other than a reliable connection.
var errTransport = errors.New("request for another transport")
