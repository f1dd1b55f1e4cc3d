package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

// Request is a peer's request for a connection. Answer it with Accept or Reject.
type Request struct {
	Local, Remote      netip.AddrPort
	QPN                uint32 // the peer's queue pair
	ResponderResources uint8  // READs and atomics that the peer serves at a time
	InitiatorDepth     uint8  // READs and atomics that the peer wants in flight
	SRQ                bool
	PrivateData        []byte // the rest of the field, padded with zeros

	id *identifier
	at place
}

// newRequest adopts the identifier of a request, or refuses it if it is for another device.
func (m *Manager) newRequest(ev *event) (*Request, error) {
	d, err := m.adopt(ev.ID)
	if err != nil {
		m.refuse(ev.ID)
		return nil, err
	}
	w, err := d.where()
	if err != nil {
		d.destroy()
		return nil, err
	}
	return &Request{
		Local: w.local, Remote: w.remote, QPN: ev.param.qpn,
		ResponderResources: ev.param.responderResources, InitiatorDepth: ev.param.initiatorDepth,
		SRQ: ev.param.srq, PrivateData: ev.param.private, id: d, at: w,
	}, nil
}

// Accept moves the queue pair to RTS, accepts the request and waits until the peer confirms. If the confirmation is
// lost, it is requested again, which takes seconds; call Established if the peer's first data arrives earlier. On an
// error the peer is refused, and the queue pair may be in any state.
func (r *Request) Accept(ctx context.Context, p cm.AcceptParams) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	c, err := r.accept(ctx, &p)
	if err != nil {
		r.id.destroy() // this also tells the peer
		return nil, fmt.Errorf("accept: %w", err)
	}
	return c, nil
}

func (r *Request) accept(ctx context.Context, p *cm.AcceptParams) (*Conn, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	if p.QP.Type() != verbs.QPTRC {
		return nil, fmt.Errorf("%v queue pair: %w", p.QP.Type(), verbs.ErrNotSupported)
	}
	if len(p.PrivateData) > cm.MaxREPPrivate {
		return nil, fmt.Errorf("%d bytes: %w", len(p.PrivateData), cm.ErrPrivateData)
	}
	p.QPParams = p.WithDefaults(r.id.m.dev.Attr())
	p.ResponderResources = min(p.ResponderResources, r.InitiatorDepth)
	p.InitiatorDepth = min(p.InitiatorDepth, r.ResponderResources)
	attr, err := r.id.connectQP(&p.QPParams, r.at)
	if err != nil {
		return nil, err
	}
	param := paramOf(&p.QPParams, p.PrivateData)
	var ev event
	err = r.id.do(accept{id: r.id.handle, uid: r.id.uid, param: &param})
	if err == nil {
		ev, err = r.id.await(ctx, rdmacm.Established)
	}
	if err != nil && ev.Kind != rdmacm.Disconnected {
		return nil, errors.Join(err, p.Fail())
	}
	c := newConn(r.id, p.QPParams, attr, r.at, r.PrivateData)
	if err != nil { // the peer ended the connection, so it had our answer and may have sent data
		c.event(ev)
	}
	return c, nil
}

// Established reports that the peer's data arrived, which proves that it has our answer: a waiting Accept returns. A
// loop may call it.
func (r *Request) Established() {
	_ = r.id.do(notify{id: r.id.handle}) // fails if the peer has confirmed meanwhile
}

// Reject refuses the request. private is at most cm.MaxREJPrivate bytes. The peer sees the reason
// cm.RejectConsumerDefined, the only one that the kernel lets programs give.
func (r *Request) Reject(private []byte) error {
	if len(private) > cm.MaxREJPrivate {
		return fmt.Errorf("reject: %d bytes: %w", len(private), cm.ErrPrivateData)
	}
	err := r.id.do(reject{id: r.id.handle, private: private})
	r.id.destroy()
	if err != nil {
		return fmt.Errorf("reject: %w", err)
	}
	return nil
}
