package manager

import (
	"context"
	"errors"
	"net/netip"

	"github.com/smcgw/smcgw/rsocket/cm"
)

// own is the manager of package cm.
type own struct{ *cm.Manager }

// Dial implements Manager.
func (m own) Dial(ctx context.Context, p cm.DialParams) (Conn, error) {
	return connOf(m.Manager.Dial(ctx, p))
}

// Listen implements Manager.
func (m own) Listen(local netip.AddrPort, backlog int) (Listener, error) {
	l, err := m.Manager.Listen(local, cm.ListenConfig{Backlog: backlog})
	if err != nil {
		return nil, err
	}
	return ownListener{l}, nil
}

type ownListener struct{ *cm.Listener }

// Accept implements Listener.
func (l ownListener) Accept(ctx context.Context) (Request, error) {
	r, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return ownRequest{r}, nil
}

type ownRequest struct{ *cm.Request }

// Private implements Request.
func (r ownRequest) Private() ([]byte, error) {
	if r.Transport != cm.TransportRC {
		return nil, errTransport
	}
	return r.PrivateData, nil
}

// Accept implements Request.
func (r ownRequest) Accept(ctx context.Context, p cm.AcceptParams) (Conn, error) {
	return connOf(r.Request.Accept(ctx, p))
}

// Refuse implements Request. A peer that has gone away needs no answer.
func (r ownRequest) Refuse(reason cm.RejectReason) { _ = r.Reject(reason, nil) }

// errTransport is a request for something else than a reliable connection.
var errTransport = errors.New("request for another transport")
