package kernel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

const (
	// attemptTimeout bounds an attempt to connect. The kernel's own retries end after 70 s.
	attemptTimeout = 2 * time.Minute
	// staleWait is the pause before a peer that refused a stale connection is asked again.
	staleWait = time.Second
)

// Dial connects a queue pair to a peer's as cm.Manager.Dial does. A refusal is a *cm.RejectError, an address without a
// route a *rdmacm.EventError, and one reached by another device ErrOtherDevice. p.MTU is ignored: the kernel knows the
// MTU of the path. After an error the queue pair may be in any state.
func (m *Manager) Dial(ctx context.Context, p cm.DialParams) (cm.Conn, error) {
	if err := checkDial(&p); err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	p.QPParams = p.WithDefaults(m.dev.Attr())
	if p.PortSpace == 0 {
		p.PortSpace = cm.PortSpaceTCP
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	c, err := cm.RetryStale(ctx, staleWait, func() (cm.Conn, error) { return m.dialOnce(ctx, &p) })
	if err != nil {
		return nil, fmt.Errorf("dial %v: %w", p.Remote, err)
	}
	return c, nil
}

func checkDial(p *cm.DialParams) error {
	if err := p.Check(); err != nil {
		return err
	}
	if p.QP.Type() != verbs.QPTRC {
		return fmt.Errorf("%v queue pair: %w", p.QP.Type(), verbs.ErrNotSupported)
	}
	if !p.Remote.IsValid() {
		return fmt.Errorf("remote address missing: %w", verbs.ErrInvalid)
	}
	if len(p.PrivateData) > cm.MaxDialPrivate {
		return fmt.Errorf("%d bytes: %w", len(p.PrivateData), cm.ErrPrivateData)
	}
	return nil
}

func (m *Manager) dialOnce(ctx context.Context, p *cm.DialParams) (cm.Conn, error) {
	d, err := m.create(p.PortSpace)
	if err != nil {
		return nil, err
	}
	c, err := d.dial(ctx, p)
	if err != nil {
		d.destroy() // this also tells the peer if a request was sent
		return nil, err
	}
	return c, nil
}

func (d *identifier) dial(ctx context.Context, p *cm.DialParams) (cm.Conn, error) {
	if err := d.resolve(ctx, p.Local, p.Remote); err != nil {
		return nil, err
	}
	w, err := d.where()
	if err != nil {
		return nil, err
	}
	if err := d.do(connect{id: d.handle, param: paramOf(&p.QPParams, p.PrivateData)}); err != nil {
		return nil, err
	}
	answer, err := d.await(ctx, rdmacm.ConnectResponse)
	if err != nil {
		return nil, err
	}
	p.InitiatorDepth = min(p.InitiatorDepth, answer.param.responderResources)
	attr, err := d.connectQP(&p.QPParams, w)
	if err != nil {
		return nil, errors.Join(err, d.do(reject{id: d.handle}))
	}
	if err := d.do(accept{id: d.handle, uid: d.uid}); err != nil {
		return nil, errors.Join(err, p.Fail())
	}
	return newConn(d, p.QPParams, attr, w, answer.param.private), nil
}

// paramOf returns what the peer must know of a queue pair.
func paramOf(p *cm.QPParams, private []byte) connParam {
	return connParam{
		qpn: p.QP.Num(), private: private, flowControl: true,
		responderResources: p.ResponderResources, initiatorDepth: p.InitiatorDepth,
		retryCount: p.RetryCount, rnrRetryCount: p.RNRRetry,
	}
}
