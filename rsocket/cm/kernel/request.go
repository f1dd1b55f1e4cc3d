package kernel

import (
	"context"
	"errors"
	"fmt"

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

// request implements cm.Answer.
type request struct {
	cm.Request
	id *identifier
	at place
}

// newRequest adopts the identifier of a request, or refuses it if it is for another device.
func (m *Manager) newRequest(ev *event) (*cm.Request, error) {
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
	r := &request{id: d, at: w, Request: cm.Request{
		Local: w.local, Remote: w.remote, Transport: cm.TransportRC, QPN: ev.param.qpn,
		ResponderResources: ev.param.responderResources, InitiatorDepth: ev.param.initiatorDepth,
		PrivateData: ev.param.private,
	}}
	r.Answer = r
	return &r.Request, nil
}

// Accept implements cm.Answer.
func (r *request) Accept(ctx context.Context, p cm.AcceptParams) (cm.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	c, err := r.accept(ctx, &p)
	if err != nil {
		r.id.destroy() // this also tells the peer
		return nil, fmt.Errorf("accept: %w", err)
	}
	return c, nil
}

func (r *request) accept(ctx context.Context, p *cm.AcceptParams) (cm.Conn, error) {
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

// Established implements cm.Answer.
func (r *request) Established() {
	_ = r.id.do(notify{id: r.id.handle}) // fails if the peer has confirmed meanwhile
}

// Reject implements cm.Answer. Whatever the reason, the peer sees cm.RejectConsumerDefined, the only one that the kernel
// lets programs give.
func (r *request) Reject(_ cm.RejectReason, private []byte) error {
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
