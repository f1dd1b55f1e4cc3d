package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// defaultPKey is the partition of which every port is a member.
const defaultPKey = 0xffff

// localAckDelay is our acknowledgement delay as told to peers: 0.13 s, as in the kernel's rxe; a software device
// acknowledges once per turn.
const localAckDelay = 15

// MaxDialPrivate is the room for the application in a request.
const MaxDialPrivate = MaxREQPrivate - AddrHeaderSize

// staleRetries is how often RetryStale tries again.
const staleRetries = 2

// DialParams are the address to call and the queue pair to connect. Remote and QP must be set.
type DialParams struct {
	QPParams
	// Local is our address, one of the device. Without an address it is the first one of Remote's IP version, without a
	// port any.
	Local  netip.AddrPort
	Remote netip.AddrPort
	// PortSpace is the port space of Remote. Default PortSpaceTCP.
	PortSpace PortSpace
	// PrivateData is for the peer's application, at most MaxDialPrivate bytes.
	PrivateData []byte
	// MTU is the path MTU. Default: that of our port.
	MTU verbs.MTU
}

// Dial connects a queue pair to a peer's: it sends a request, waits for the answer, moves the queue pair to RTS and
// tells the peer. A refusal is a *RejectError. After an error the queue pair may be in any state. ctx bounds the whole
// call; without a deadline an unanswered request ends after Config.Retries.
func (m *Manager) Dial(ctx context.Context, p DialParams) (Conn, error) {
	if err := p.Check(); err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	if len(p.PrivateData) > MaxDialPrivate {
		return nil, fmt.Errorf("dial: %d bytes: %w", len(p.PrivateData), ErrPrivateData)
	}
	p.QPParams = p.WithDefaults(m.dev.Attr())
	setDefault(&p.PortSpace, PortSpaceTCP)
	conn, err := RetryStale(ctx, m.cfg.TimeWait, func() (Conn, error) { return m.dialOnce(ctx, &p) })
	if err != nil {
		return nil, fmt.Errorf("dial %v: %w", p.Remote, err)
	}
	return conn, nil
}

// RetryStale calls dial, and a few times again after a pause if the peer must first forget an older connection of the
// same queue pair.
func RetryStale(ctx context.Context, pause time.Duration, dial func() (Conn, error)) (Conn, error) {
	for try := 0; ; try++ {
		conn, err := dial()
		var rejected *RejectError
		if !errors.As(err, &rejected) || rejected.Reason != RejectStaleConn || try == staleRetries {
			return conn, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (m *Manager) dialOnce(ctx context.Context, p *DialParams) (Conn, error) {
	var x *conn
	var err error
	m.act(func(now time.Time) { x, err = m.dialLocked(now, p) })
	if err != nil {
		return nil, err
	}
	if err := m.wait(ctx, x.changed, func() bool { return x.state != stateReqSent }); err != nil {
		return nil, m.giveUp(x, err)
	}
	m.mu.Lock()
	rep, gone := x.rep, x.err
	m.mu.Unlock()
	if gone != nil {
		return nil, gone
	}
	attr := m.activeAttr(p, x, rep)
	if err := p.Connect(attr); err != nil {
		return nil, m.giveUp(x, err)
	}
	m.act(func(time.Time) { err = x.ready(nil) })
	if err != nil {
		return nil, errors.Join(err, p.Fail())
	}
	return m.newConn(x, p.QPParams, attr, rep.PrivateData), nil
}

// startLocked returns the route and source of an exchange that begins here; the port is ephemeral unless local has one.
func (m *Manager) startLocked(local netip.AddrPort, remote netip.Addr) (to route, source netip.AddrPort, err error) {
	if m.closed {
		return to, source, ErrClosed
	}
	if to, err = m.localRouteLocked(local.Addr(), remote); err != nil {
		return to, source, err
	}
	port := local.Port()
	if port == 0 {
		port, err = m.ephemeralLocked(func(uint16) bool { return false })
	}
	return to, netip.AddrPortFrom(m.addrs[to.local], port), err
}

func (m *Manager) dialLocked(now time.Time, p *DialParams) (*conn, error) {
	to, source, err := m.startLocked(p.Local, p.Remote.Addr())
	if err != nil {
		return nil, err
	}
	mtu := p.MTU
	setDefault(&mtu, m.dev.Port().ActiveMTU)
	req, h := m.cfg.request(p, source, to.remote, mtu, randomID()&0xffffff)
	return m.core.dial(now, to, req, h)
}

// request returns the REQ of an attempt, without the ids that core assigns.
func (c *Config) request(p *DialParams, local netip.AddrPort, remote netip.Addr, mtu verbs.MTU, psn uint32) (*REQ, AddrHeader) {
	h := AddrHeader{Source: local, Destination: remote}
	return &REQ{
		Service: ServiceOf(p.PortSpace, p.Remote.Port()), QPN: p.QP.Num(), Transport: p.transport(),
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		RemoteTimeout: c.ResponseTimeout, LocalTimeout: c.ResponseTimeout, MaxCMRetries: uint8(c.Retries),
		FlowControl: true, PSN: psn, PKey: defaultPKey, MTU: mtu,
		RetryCount: p.RetryCount, RNRRetry: p.RNRRetry,
		Primary: Path{
			LocalLID: permissiveLID, RemoteLID: permissiveLID,
			LocalGID: verbs.GIDOf(local.Addr()), RemoteGID: verbs.GIDOf(remote),
			HopLimit: hopLimit, AckTimeout: ackTimeout(localAckDelay, c.PacketLifetime),
		},
		PrivateData: append(h.Append(nil), p.PrivateData...),
	}, h
}

// activeAttr returns the attributes of a queue pair whose request was accepted (IBTA vol. 1, 12.9.8). The starting PSN
// in a message is the one that its sender expects, so its receiver must begin with it.
func (m *Manager) activeAttr(p *DialParams, x *conn, rep *REP) verbs.QPAttr {
	return verbs.QPAttr{
		AH: ahAttr(m.dev.Port(), x.route), DestQPNum: rep.QPN, RQPSN: x.req.PSN, SQPSN: rep.PSN, PathMTU: x.req.MTU,
		MaxDestRDAtomic: p.ResponderResources, MaxRDAtomic: min(p.InitiatorDepth, rep.ResponderResources),
		MinRNRTimer: p.MinRNRTimer, RNRRetry: rep.RNRRetry, RetryCnt: p.RetryCount,
		Timeout: ackTimeout(rep.AckDelay, m.cfg.PacketLifetime),
	}
}

// giveUp aborts our attempt for a local reason.
func (m *Manager) giveUp(x *conn, why error) error {
	m.act(func(now time.Time) { x.abort(now, why) })
	return why
}
