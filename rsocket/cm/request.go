package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// Request is a peer's request for a connection. Answer it with Accept or Reject; otherwise a Manager refuses it after
// Config.ServiceTimeout. The kernel's manager does not tell what it needs no help with: port space, PSN, MTU and the
// timers of our queue pair.
type Request struct {
	Local, Remote      netip.AddrPort
	PortSpace          PortSpace
	Transport          Transport // type of queue pair that Accept needs
	QPN                uint32    // the peer's queue pair
	PSN                uint32    // first PSN that the peer expects
	MTU                verbs.MTU // of the path
	ResponderResources uint8     // READs and atomics that the peer serves at a time
	InitiatorDepth     uint8     // READs and atomics that the peer wants in flight
	RetryCount         uint8     // for our queue pair
	RNRRetry           uint8     // for our queue pair
	AckTimeout         uint8     // for our queue pair, coded
	PrivateData        []byte    // the rest of the field, padded with zeros

	Answer
}

// Answer is what to do with a Request.
type Answer interface {
	// Accept moves the queue pair to RTS, accepts the request and waits until the peer confirms. If the confirmation is
	// lost, it is requested again, which takes seconds; call Established if the peer's first data arrives earlier. On an
	// error the peer is refused, and the queue pair may be in any state.
	Accept(ctx context.Context, p AcceptParams) (Conn, error)
	// Established reports that the peer's data arrived, which proves that it has our answer: a waiting Accept returns. A
	// loop may call it.
	Established()
	// Reject refuses the request. private is at most MaxREJPrivate bytes.
	Reject(reason RejectReason, private []byte) error
}

// request implements Answer.
type request struct {
	Request
	m *Manager
	x *conn
}

var _ Answer = (*request)(nil)

func newRequest(m *Manager, x *conn) *Request {
	r := &request{m: m, x: x, Request: Request{
		PortSpace: x.req.Service.PortSpace(), Transport: x.req.Transport, QPN: x.req.QPN, PSN: x.req.PSN, MTU: x.req.MTU,
		ResponderResources: x.req.ResponderResources, InitiatorDepth: x.req.InitiatorDepth,
		RetryCount: x.req.RetryCount, RNRRetry: x.req.RNRRetry, AckTimeout: x.req.Primary.AckTimeout,
		PrivateData: x.req.PrivateData,
	}}
	r.Local, r.Remote = x.addrs()
	r.Answer = r
	return &r.Request
}

// AcceptParams are the parameters of Accept. QP must be set.
type AcceptParams struct {
	QPParams
	// PrivateData is for the peer's application, at most MaxREPPrivate bytes.
	PrivateData []byte
}

func (r *request) Accept(ctx context.Context, p AcceptParams) (Conn, error) {
	if err := r.acceptable(&p); err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	p.QPParams = p.WithDefaults(r.m.dev.Attr())
	setDefault(&p.ResponderResources, 255)
	setDefault(&p.InitiatorDepth, 255)
	limit := uint8(min(r.m.dev.Attr().MaxRDAtomic, 255))
	p.ResponderResources = min(p.ResponderResources, r.InitiatorDepth, limit)
	p.InitiatorDepth = min(p.InitiatorDepth, r.ResponderResources, limit)
	attr := r.attr(&p)
	if err := p.Connect(attr); err != nil {
		reason := RejectConsumerDefined
		if r.MTU > r.m.dev.Port().ActiveMTU {
			reason = RejectInvalidMTU
		}
		return nil, errors.Join(fmt.Errorf("accept: %w", err), r.Reject(reason, nil))
	}
	var err error
	r.m.act(func(now time.Time) {
		err = r.x.accept(now, &REP{
			QPN: p.QP.Num(), PSN: attr.RQPSN, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
			AckDelay: localAckDelay, FlowControl: true, RNRRetry: p.RNRRetry, PrivateData: p.PrivateData,
		})
	})
	if err == nil {
		err = r.established(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("accept: %w", err), p.Fail())
	}
	return r.m.newConn(r.x, p.QPParams, attr, r.PrivateData), nil
}

// established waits for the RTU.
func (r *request) established(ctx context.Context) error {
	err := r.m.wait(ctx, r.x.changed, func() bool { return r.x.complete || r.x.err != nil })
	if err != nil {
		return r.m.giveUp(r.x, err)
	}
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	if r.x.complete {
		return nil // even if it is already over: data may have arrived
	}
	return r.x.err
}

func (r *request) acceptable(p *AcceptParams) error {
	if err := p.Check(); err != nil {
		return err
	}
	if p.transport() != r.Transport {
		return fmt.Errorf("%v queue pair for a request of transport %d: %w", p.QP.Type(), r.Transport, verbs.ErrInvalid)
	}
	if len(p.PrivateData) > MaxREPPrivate {
		return fmt.Errorf("%d bytes: %w", len(p.PrivateData), ErrPrivateData)
	}
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	if r.x.state != stateReqRcvd {
		return r.x.gone()
	}
	return nil
}

// attr returns the attributes of the answering queue pair (IBTA vol. 1, 12.9.8).
func (r *request) attr(p *AcceptParams) verbs.QPAttr {
	return verbs.QPAttr{
		AH: ahAttr(r.m.dev.Port(), r.x.route), DestQPNum: r.QPN, RQPSN: randomID() & 0xffffff, SQPSN: r.PSN,
		PathMTU: r.MTU, MaxDestRDAtomic: p.ResponderResources, MaxRDAtomic: p.InitiatorDepth,
		MinRNRTimer: p.MinRNRTimer, RNRRetry: r.RNRRetry, RetryCnt: r.RetryCount, Timeout: r.AckTimeout,
	}
}

func (r *request) Established() {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	r.x.establish()
}

func (r *request) Reject(reason RejectReason, private []byte) (err error) {
	if len(private) > MaxREJPrivate {
		return fmt.Errorf("reject: %d bytes: %w", len(private), ErrPrivateData)
	}
	r.m.act(func(time.Time) { err = r.x.refuse(reason, nil, private) })
	if err != nil {
		return fmt.Errorf("reject: %w", err)
	}
	return nil
}
