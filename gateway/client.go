package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/host"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
	"github.com/smcgw/smcgw/rsocket"
)

// SYNACK is called by netstack for an accepted SYN-ACK of a tuple it does not
// know: the peer's gateway wants to talk about a connection our application
// has begun.
func (g *gateway) SYNACK(sa netstack.SYNACK) {
	t := host.Tuple(sa.Tuple)
	defer g.containAbout(t)
	e, err := g.steer.Flow(ebpf.Tuple(t))
	if err != nil || e.State != ebpf.StateNegotiating {
		return // the app gave up, or a duplicate of something that is over
	}
	if !g.hold() { // the connection goes back as it came
		(&flow{g: g, tuple: t, isn: e.ISN, syn: e.SYN}).entryReleased()
		return
	}
	f, fresh := g.newFlow(config.SideClient, t, e.ISN)
	if !fresh {
		g.wg.Done()
		return
	}
	f.auto = g.learnsFrom(e.Rule)
	f.look = host.LookOf(sa.Raw)
	f.syn, f.nonce, f.rtt = e.SYN, e.Nonce, max(0, e.ChangedAt-e.OfferedAt)
	if r := g.admit(f); r != negotiate.ReasonNone { // it goes back before the wire leg exists
		f.post(func() {
			defer g.wg.Done()
			f.release(negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: r})
		})
		return
	}
	go f.adopt(sa)
}

// adopt takes over the connection and makes what the PROPOSAL offers; the
// handshake is the shard's.
func (f *flow) adopt(sa netstack.SYNACK) {
	posted := false
	defer func() {
		if !posted {
			f.g.wg.Done()
		}
	}()
	defer f.contain()
	if f.step(faults.Accepted) {
		select {
		case <-f.gone:
		case <-f.g.draining:
		}
	}
	ctx, cancel := context.WithTimeout(f.g.ctx, adoptTimeout)
	defer cancel()
	conn, err := f.g.stack.Adopt(ctx, f.syn, sa.Raw, f.rtt)
	if err != nil {
		f.g.log.Debug("adoption", "flow_id", f.id, "error", err)
		v := negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: f.adoptionReason(err)}
		posted = true
		f.post(func() {
			defer f.g.wg.Done()
			f.release(v)
		})
		return
	}
	defer func() {
		if !posted { // behind a panic
			conn.Abort()
		}
	}()
	p := negotiate.Proposal{
		Nonce: f.nonce, GatewayID: f.g.id, HostID: f.g.hostID, DatagramPort: f.g.dgrams.Load().Port(), Random: f.g.keys.random(),
	}
	carries, reason := f.makeOffers(&p)
	posted = true
	f.post(func() { f.propose(conn, p, carries, reason) })
}

// propose begins the handshake of a client with what was prepared for it; reason is why
// there is no carrier, where there is none.
func (f *flow) propose(conn *netstack.Conn, p negotiate.Proposal, carries []*carry, reason negotiate.Reason) {
	if !f.setWire(conn) { // replaced meanwhile: not a packet may leave
		defer f.g.wg.Done()
		conn.Forget()
		closeAll(carries)
		return
	}
	f.carries = carries
	hs := negotiate.NewClient(negotiate.ClientConfig{
		HandshakeTimeout: f.g.live.Load().Limits.HandshakeTimeout, Keys: f.g.keys.load(), Binding: bindingOf(conn),
	}, p)
	c := &client{hs: hs}
	c.f, c.s, c.negotiator.hs, c.eof = f, f.g.shardFor(f), hs, hs.WireLost
	c.reading, c.execute = func() bool { return true }, c.action
	f.setNegotiator(&c.negotiator)
	if len(p.Carriers) == 0 {
		c.begin(hs.Cancel(time.Now(), reason))
		return
	}
	c.begin(hs.Start(time.Now(), f.rtt))
}

// adoptionReason is why a wire leg could not be had.
func (f *flow) adoptionReason(err error) negotiate.Reason {
	switch {
	case f.g.ctx.Err() != nil:
		return negotiate.ReasonDrained
	case errors.Is(err, netstack.ErrOverload):
		return negotiate.ReasonFlowLimit
	case errors.Is(err, netstack.ErrPacket):
		return negotiate.ReasonProtocolError
	case errors.Is(err, context.DeadlineExceeded): // a host too busy for its own part
		return negotiate.ReasonHandshakeTimeout
	default:
		return negotiate.ReasonDeviceFailed
	}
}

// adoptTimeout bounds the local part of adoption; nothing waits for the
// network in it.
const adoptTimeout = time.Second

// client executes the actions of a client handshake.
type client struct {
	negotiator
	hs *negotiate.Client
}

func (c *client) action(a negotiate.Action) {
	switch a := a.(type) {
	case negotiate.Send:
		c.send(a.Bytes)
	case negotiate.HandOver:
		c.f.peerID = a.Accept.GatewayID
		c.f.g.dgrams.Load().News(ebpf.Tuple(c.f.tuple), a.Accept.DatagramPort, a.Accept.GatewayID)
		c.f.answered(a.Accept)
		c.handOver()
	case negotiate.Prove:
		c.prove(a)
	case negotiate.Carry:
		c.rememberProof()
		c.f.carryBy(a.Carrier)
	case negotiate.Records:
		c.done = true
		c.f.records(a.Rest)
	case negotiate.Release:
		c.done = true
		c.declined(a.Verdict)
		c.f.release(a.Verdict)
	case negotiate.Abort:
		c.done = true
		c.f.abortVerdict(a)
	}
}

// declined tells the carriers that the server could use none of them.
func (c *client) declined(v negotiate.Verdict) {
	if !v.Remote || v.Reason != negotiate.ReasonDeviceFailed && v.Reason != negotiate.ReasonNoCommonCarrier {
		return
	}
	if c.f.answered(nil) {
		c.f.outdated = true
	}
}

// handOver gives the application's recorded SYN to our listener, so that its
// connect() returns. A socket left over from an earlier connection on this
// tuple would swallow that SYN.
func (c *client) handOver() {
	f := c.f
	t := ebpf.Tuple(f.tuple)
	if err := f.g.steer.Transition(t, f.isn, ebpf.StateCompleting, ebpf.StateNegotiating); err != nil {
		c.appFailed()
		return
	}
	if _, err := f.g.steer.DestroySocket(t); err != nil {
		f.g.log.Warn("stale gateway socket", "flow_id", f.id, "error", err)
	}
	if c.hold.held = f.step(faults.Handover); c.hold.held {
		return
	}
	if err := f.g.steer.InjectApp(f.syn); err != nil {
		f.g.log.Warn("hand over", "flow_id", f.id, "error", err)
		c.appFailed()
	}
}

// appConnected reports whether the application's connect() has returned although
// nobody could be accepted: its last ACK has to pass its own device's queue for
// neighbours, where it waits when the cable is out.
func (f *flow) appConnected() bool {
	yes, err := f.g.steer.AppConnected(ebpf.Tuple(f.tuple))
	if err != nil {
		f.g.log.Debug("socket of the application", "flow_id", f.id, "error", err)
	}
	return yes
}

func (c *client) appFailed() { c.input(c.hs.AppFailed) }

// appAccepted is what the listener has accepted: the application's connect() has
// returned.
func (f *flow) appAccepted(leg *appLeg) {
	leg.approach(f.look)
	c, ok := clientOf(f.hs)
	if !ok || f.hs.left.Load() {
		leg.reset()
		return
	}
	f.hs.happened(func(now time.Time) []negotiate.Action {
		if _, decided := c.Verdict(); decided || !f.setLeg(leg) {
			leg.reset()
			return nil
		}
		if f.g.steer.Transition(ebpf.Tuple(f.tuple), f.isn, ebpf.StateCarrying, ebpf.StateCompleting) != nil {
			return c.AppFailed(now) // given back to the kernel while we were late
		}
		return c.AppAccepted(now)
	})
}

func clientOf(n *negotiator) (*negotiate.Client, bool) {
	if n == nil {
		return nil, false
	}
	c, ok := n.hs.(*negotiate.Client)
	return c, ok
}

// prove connects the queue pair of one carrier to the server's and lets the
// probe run. A proof that does not come back is the machine's timer's.
func (c *client) prove(p negotiate.Prove) {
	kind := p.Offer.Kind
	result := func(ok bool) {
		c.input(func(now time.Time) []negotiate.Action { return c.hs.Proved(now, kind, ok) })
	}
	cr := c.f.carryOf(kind)
	if cr == nil {
		result(false)
		return
	}
	cr.report = func(ev rsocket.Events) {
		switch {
		case ev.Has(rsocket.EventProved):
			cr.Proved()
			result(true)
		case ev.Has(rsocket.EventFailed):
			result(false)
		}
	}
	warm, err := cr.Prove(p.Offer, p.Timeout)
	if err != nil {
		c.f.g.log.Debug("carrier proof", "flow_id", c.f.id, "carrier", kind, "error", err)
	}
	if warm || err != nil {
		result(err == nil)
	}
}

// rememberProof leaves a peer alone whose carriers all failed their proof. One
// that has been proved by another flow was only slow this time.
func (c *client) rememberProof() {
	carries := c.f.carries
	for _, cr := range carries {
		if cr.Warm() {
			return
		}
	}
	for _, cr := range carries {
		cr.Unproved()
	}
	v, _ := c.hs.Verdict()
	c.f.g.remember(c.f, v)
}
