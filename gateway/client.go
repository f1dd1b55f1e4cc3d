package gateway

import (
	"context"
	"errors"
	"math/rand/v2"
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
	if r := g.admit(f); r != negotiate.ReasonNone {
		go f.releaseEarly(r)
		return
	}
	go f.adopt(sa)
}

// releaseEarly gives a connection back before the wire leg exists.
func (f *flow) releaseEarly(r negotiate.Reason) {
	defer f.g.wg.Done()
	defer f.contain()
	f.release(negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: r})
}

// adopt takes over the connection and makes what the PROPOSAL offers; the
// handshake is the shard's.
func (f *flow) adopt(sa netstack.SYNACK) {
	began := false
	defer func() {
		if !began {
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
		f.release(negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: f.adoptionReason(err)})
		return
	}
	if !f.setWire(conn) { // replaced meanwhile: not a packet may leave
		conn.Forget()
		return
	}
	p := negotiate.Proposal{
		Nonce: f.nonce, GatewayID: f.g.id, HostID: f.g.hostID, DatagramPort: f.g.dgrams.Load().Port(), Random: f.g.keys.random(),
	}
	reason := f.makeOffers(&p)
	hs := negotiate.NewClient(negotiate.ClientConfig{
		HandshakeTimeout: f.g.live.Load().Limits.HandshakeTimeout, Keys: f.g.keys.load(), Binding: bindingOf(conn),
	}, p)
	c := &client{hs: hs}
	c.f, c.s, c.negotiator.hs, c.eof = f, f.g.shardFor(f), hs, hs.WireLost
	c.reading, c.execute = func() bool { return true }, c.action
	began = true
	c.s.Post(func() {
		c.s.WorksFor(f)
		f.setNegotiator(&c.negotiator)
		if len(p.Carriers) == 0 {
			c.begin(hs.Cancel(time.Now(), reason))
			return
		}
		c.begin(hs.Start(time.Now(), f.rtt))
	})
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
		for _, fb := range c.f.g.fabrics {
			fb.answered(c.f, a.Accept)
		}
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
	for _, fb := range c.f.g.fabrics {
		if fb.answered(c.f, nil) {
			c.f.outdated.Store(true)
		}
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

// appAccepted is called by the listener: the application's connect() has
// returned.
func (f *flow) appAccepted(leg *appLeg) {
	n := f.negotiating()
	if n == nil {
		leg.reset()
		return
	}
	c, ok := n.hs.(*negotiate.Client)
	late := func() { leg.reset() }
	if !ok || !n.input(func(now time.Time) []negotiate.Action {
		if _, decided := c.Verdict(); decided || !f.setLeg(leg) {
			late()
			return nil
		}
		if f.g.steer.Transition(ebpf.Tuple(f.tuple), f.isn, ebpf.StateCarrying, ebpf.StateCompleting) != nil {
			return c.AppFailed(now) // given back to the kernel while we were late
		}
		return c.AppAccepted(now)
	}) {
		late()
	}
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
			cr.proved = true
			cr.fabric.proved(cr)
			result(true)
		case ev.Has(rsocket.EventFailed):
			result(false)
		}
	}
	warm, err := cr.proveTo(p.Offer)
	if err != nil {
		c.f.g.log.Debug("carrier proof", "flow_id", c.f.id, "carrier", kind, "error", err)
	}
	if warm || err != nil {
		result(err == nil)
		return
	}
	if cr.lossy {
		cr.repeatProof(p.Timeout / proofRepeats)
	}
}

// proofRepeats is how often a proof is sent on a carrier that may lose it: often
// enough that the loss of any packet on the way is noticed within the proof's
// time, which the transport's own timer would overstep.
const proofRepeats = 4

// proveTo connects a client's queue pair and sends the probe, one full path MTU.
// A carrier that has been proved with this peer is warm: nothing is left to
// prove.
func (c *carry) proveTo(to negotiate.CarrierOffer) (warm bool, err error) {
	if err := c.fabric.connect(c, to); err != nil {
		return false, err
	}
	if c.fabric.warm(c) {
		return true, nil
	}
	c.seed = rand.Uint64()
	return false, c.ep.Probe(c.probeLen, c.seed)
}

// repeatProof sends the probe again as long as nothing has come back.
func (c *carry) repeatProof(after time.Duration) {
	c.s.After(after, func() {
		c.s.WorksFor(c.f)
		if !c.proved && !c.started && !c.closed && c.ep.Probe(c.probeLen, c.seed) == nil {
			c.repeatProof(after)
		}
	})
}

// rememberProof leaves a peer alone whose carriers all failed their proof. One
// that has been proved by another flow was only slow this time.
func (c *client) rememberProof() {
	c.f.mu.Lock()
	carries := c.f.carries
	c.f.mu.Unlock()
	for _, cr := range carries {
		if cr.fabric.warm(cr) {
			return
		}
	}
	for _, cr := range carries {
		cr.fabric.unproved(cr)
	}
	v, _ := c.hs.Verdict()
	c.f.g.remember(c.f, v)
}
