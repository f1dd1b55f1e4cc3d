package cm

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// MaxResolvePrivate is the room for the application's private data in a SIDR_REQ.
const MaxResolvePrivate = MaxSIDRREQPrivate - AddrHeaderSize

// ResolveParams describes the datagram service to find. Remote must be set.
type ResolveParams struct {
	Local, Remote netip.AddrPort // as in DialParams
	// PortSpace is the port space of Remote. Default PortSpaceUDP.
	PortSpace PortSpace
	// PrivateData is for the peer's application, at most MaxResolvePrivate bytes.
	PrivateData []byte
}

// UDInfo describes where to send datagrams.
type UDInfo struct {
	QPN, QKey   uint32
	AH          verbs.AHAttr // for PD.CreateAH
	PrivateData []byte       // the whole field of the answer, padded with zeros
}

// ResolveUD asks a peer for the queue pair of a datagram service. A refusal is a *SIDRError. ctx bounds the wait;
// without a deadline an unanswered question ends after Config.Retries.
func (m *Manager) ResolveUD(ctx context.Context, p ResolveParams) (UDInfo, error) {
	if len(p.PrivateData) > MaxResolvePrivate {
		return UDInfo{}, fmt.Errorf("resolve: %d bytes: %w", len(p.PrivateData), ErrPrivateData)
	}
	setDefault(&p.PortSpace, PortSpaceUDP)
	var q *query
	var err error
	m.act(func(now time.Time) { q, err = m.resolveLocked(now, &p) })
	if err == nil {
		err = m.wait(ctx, q.changed, func() bool { return q.rep != nil || q.err != nil })
		m.mu.Lock()
		defer m.mu.Unlock()
		if err != nil {
			q.finish(err)
		}
		err = q.err
	}
	if err != nil {
		return UDInfo{}, fmt.Errorf("resolve %v: %w", p.Remote, err)
	}
	return UDInfo{QPN: q.rep.QPN, QKey: q.rep.QKey, AH: ahAttr(m.dev.Port(), q.route), PrivateData: q.rep.PrivateData}, nil
}

func (m *Manager) resolveLocked(now time.Time, p *ResolveParams) (*query, error) {
	to, source, err := m.startLocked(p.Local, p.Remote.Addr())
	if err != nil {
		return nil, err
	}
	h := AddrHeader{Source: source, Destination: to.remote}
	return m.core.resolve(now, to, &SIDRREQ{
		PKey: defaultPKey, Service: ServiceOf(p.PortSpace, p.Remote.Port()), PrivateData: append(h.Append(nil), p.PrivateData...),
	})
}

// UDListener receives questions for a datagram service.
type UDListener struct {
	m    *Manager
	l    *listener
	addr netip.AddrPort
}

// ListenUD accepts questions for a port, as Listen does requests.
func (m *Manager) ListenUD(local netip.AddrPort, cfg ListenConfig) (*UDListener, error) {
	setDefault(&cfg.PortSpace, PortSpaceUDP)
	l, addr, err := m.listen(local, cfg, true)
	if err != nil {
		return nil, err
	}
	return &UDListener{m, l, addr}, nil
}

// Addr returns the address listened on, with the port that was chosen.
func (l *UDListener) Addr() netip.AddrPort { return l.addr }

// Accept waits for the next question, which the caller must answer.
func (l *UDListener) Accept(ctx context.Context) (*UDRequest, error) {
	x, err := l.m.next(ctx, l.l)
	if err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	q := x.(*question)
	return &UDRequest{
		Local:  netip.AddrPortFrom(q.addr.Destination, q.req.Service.Port()),
		Remote: q.addr.Source, PrivateData: q.req.PrivateData, m: l.m, q: q,
	}, nil
}

// Close stops listening and refuses the questions that were not taken.
func (l *UDListener) Close() error {
	l.m.unlisten(l.l)
	return nil
}

// UDRequest is a peer's question for the queue pair of a datagram service. Answer it with Accept or Reject.
type UDRequest struct {
	Local, Remote netip.AddrPort
	PrivateData   []byte // the rest of the field, padded with zeros

	m *Manager
	q *question
}

// UDParams is the answer to a UDRequest.
type UDParams struct {
	QPN uint32
	// QKey is the Q_Key of the queue pair. Default UDQKey.
	QKey uint32
	// PrivateData is for the peer's application, at most MaxSIDRREPPrivate bytes.
	PrivateData []byte
}

// AH returns the address of the asking peer. Its queue pair is not known before it sends.
func (r *UDRequest) AH() verbs.AHAttr { return ahAttr(r.m.dev.Port(), r.q.route) }

// Accept tells the peer where to send. It does not wait.
func (r *UDRequest) Accept(p UDParams) error {
	setDefault(&p.QKey, UDQKey)
	return r.answer(&SIDRREP{Status: SIDRSuccess, QPN: p.QPN, QKey: p.QKey, PrivateData: p.PrivateData})
}

// Reject refuses to answer. status must not be SIDRSuccess.
func (r *UDRequest) Reject(status SIDRStatus, private []byte) error {
	if status == SIDRSuccess {
		return fmt.Errorf("reject with success: %w", verbs.ErrInvalid)
	}
	return r.answer(&SIDRREP{Status: status, PrivateData: private})
}

func (r *UDRequest) answer(rep *SIDRREP) (err error) {
	if len(rep.PrivateData) > MaxSIDRREPPrivate {
		return fmt.Errorf("answer: %d bytes: %w", len(rep.PrivateData), ErrPrivateData)
	}
	r.m.act(func(now time.Time) { err = r.q.answer(now, rep) })
	if err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}
