package conn

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
	"github.com/smcgw/smcgw/rsocket"
)

// Adopt begins a client's connection from the SYN-ACK that reveals the peer gateway and from
// the datapath's entry. auto says that the rule has action auto. shed, if set, says why there
// is no room for the connection: it then falls back before the wire leg exists. Adopt does
// not block.
func (f *Flow) Adopt(sa netstack.SYNACK, e ebpf.Flow, auto bool, shed negotiate.Reason) {
	defer f.env.Work.Done() // the work posted below is counted separately
	f.look, f.auto = host.LookOf(sa.Raw), auto
	f.syn, f.nonce, f.rtt = e.SYN, e.Nonce, max(0, e.ChangedAt-e.OfferedAt)
	switch {
	case shed != negotiate.ReasonNone:
		f.postHeld(func() { f.release(negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: shed}) })
	case f.step(faults.Accepted):
		f.env.Work.Go(func() {
			select {
			case <-f.gone:
			case <-f.env.Draining:
			}
			f.adopt(sa)
		})
	default:
		f.adopt(sa)
	}
}

// postHeld is like post, and keeps the gateway from ending before fn has run.
func (f *Flow) postHeld(fn func()) {
	f.env.Work.Add(1)
	f.post(func() {
		defer f.env.Work.Done()
		fn()
	})
}

// adopt takes over the connection. The shard does the rest.
func (f *Flow) adopt(sa netstack.SYNACK) {
	defer f.contain()
	conn, err := f.env.Stack.Adopt(f.syn, sa.Raw, f.rtt)
	f.postHeld(func() { f.adopted(conn, err) })
}

// adopted continues with the wire leg, or falls back. It prepares the offers of the PROPOSAL,
// on a goroutine if that would block.
func (f *Flow) adopted(conn *netstack.Conn, err error) {
	if err != nil {
		f.debug("adoption", "error", err)
		f.release(negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: f.adoptionReason(err)})
		return
	}
	if !f.setWire(conn) { // replaced meanwhile: no packet may be sent
		conn.Forget()
		return
	}
	p := negotiate.Proposal{
		Nonce: f.nonce, GatewayID: f.env.GatewayID, HostID: f.env.HostID, DatagramPort: f.env.Datagrams.Port(), Software: f.env.Version, Random: f.env.Keys.random(),
	}
	if f.offersAtOnce() {
		carries, reason := f.makeOffers(&p)
		f.propose(conn, p, carries, reason)
		return
	}
	f.env.Work.Go(func() {
		defer f.contain()
		carries, reason := f.makeOffers(&p)
		f.postHeld(func() { f.propose(conn, p, carries, reason) })
	})
}

// propose begins a client's handshake with the offers prepared for it. reason says why there
// is no carrier, if there is none.
func (f *Flow) propose(conn *netstack.Conn, p negotiate.Proposal, carries []*carry, reason negotiate.Reason) {
	if f.core.Ended() { // ended meanwhile
		closeAll(carries)
		return
	}
	f.carries = carries
	hs := negotiate.NewClient(negotiate.ClientConfig{
		HandshakeTimeout: f.env.HandshakeTimeout(), Keys: f.env.Keys.Load(), Binding: bindingOf(conn),
	}, p)
	c := f.newClient(hs)
	f.env.Work.Add(1) // for the handshake
	f.setNegotiator(&c.negotiator)
	if len(p.Carriers) > 0 {
		reason = negotiate.ReasonNone
	} else if reason == negotiate.ReasonNotWorthIt {
		f.notWorth()
	}
	c.begin(f.firstWord(hs, reason))
}

// firstWord returns the actions that begin the handshake, or cancel it if there is a reason
// to; then the server does not dial.
func (f *Flow) firstWord(hs *negotiate.Client, reason negotiate.Reason) []negotiate.Action {
	select {
	case <-f.env.Draining: // the drain missed this flow
		reason = negotiate.ReasonDrained
	default:
	}
	if reason != negotiate.ReasonNone {
		return hs.Cancel(time.Now(), reason)
	}
	return hs.Start(time.Now(), f.rtt)
}

// adoptionReason maps an adoption error to a reason.
func (f *Flow) adoptionReason(err error) negotiate.Reason {
	switch {
	case f.env.Context.Err() != nil:
		return negotiate.ReasonDrained
	case errors.Is(err, netstack.ErrOverload):
		return negotiate.ReasonFlowLimit
	case errors.Is(err, netstack.ErrPacket):
		return negotiate.ReasonProtocolError
	default:
		return negotiate.ReasonDeviceFailed
	}
}

// client executes the actions of a client handshake.
type client struct {
	negotiator
	hs      *negotiate.Client
	refused int           // consecutive handovers of the application that its kernel refused
	proofs  int           // proofs sent
	proving time.Duration // timeout of each proof
	silent  []*carry      // carriers whose proof has not been answered
}

func (f *Flow) newClient(hs *negotiate.Client) *client {
	c := &client{hs: hs}
	c.f, c.s, c.negotiator.hs, c.eof = f, f.Shard, hs, hs.WireLost
	c.reading, c.execute = func() bool { return true }, c.action
	return c
}

func (c *client) action(a negotiate.Action) {
	switch a := a.(type) {
	case negotiate.Send:
		c.send(a.Bytes)
	case negotiate.HandOver:
		c.f.env.Peers.Met(c.f.Tuple.Remote.Addr(), a.Accept.Software)
		c.f.env.Datagrams.News(ebpf.Tuple(c.f.Tuple), a.Accept.DatagramPort, a.Accept.GatewayID)
		c.f.answered(a.Accept, negotiate.ReasonNone)
		c.handOver()
	case negotiate.HandOverAgain:
		c.handOverAgain()
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

// declined tells the carriers that the server could use none of them, and why.
func (c *client) declined(v negotiate.Verdict) {
	if v.Remote {
		c.f.env.Peers.Declined(c.f.Tuple.Remote.Addr(), v.Reason)
	}
	if v.Remote && v.Reason.OfCarriers() && c.f.answered(nil, v.Reason) {
		c.f.outdated = true
	}
}

// handOver passes the application's recorded SYN to the listener, so that the application's
// connect() returns. A stale socket of an earlier connection on this tuple would swallow that
// SYN, so it is destroyed first.
func (c *client) handOver() {
	f := c.f
	t := ebpf.Tuple(f.Tuple)
	if err := f.env.Steering.Transition(t, f.ISN, ebpf.StateCompleting, ebpf.StateNegotiating); err != nil {
		c.appFailed()
		return
	}
	if _, err := f.env.Steering.DestroySocket(t); err != nil {
		f.env.Log.Warn("stale gateway socket", "flow_id", f.ID, "error", err)
	}
	if c.hold.held = f.step(faults.Handover); c.hold.held {
		return
	}
	c.inject()
}

// inject passes the application's SYN to the listener. If that fails, the next handover
// repeats it.
func (c *client) inject() {
	if err := c.f.env.Steering.InjectApp(c.f.syn); err != nil {
		c.f.env.Log.Warn("hand over", "flow_id", c.f.ID, "error", err)
	}
}

// refusals is how many times in a row the application's kernel must refuse the answer to its
// SYN before the application counts as gone. One is not enough: if the SYN or the answer was
// lost, it looks the same although the application is still waiting.
const refusals = 4

// handOverAgain retries an application that has not been accepted in time. It must not give
// up early, because the server's application already has a connection to be joined with this
// one. A request that waits in the legs' namespace is left to the kernel: its last ACK may
// sit in the neighbour queue of the application's device while the cable is out.
func (c *client) handOverAgain() {
	f := c.f
	// To notice a peer gateway that has gone.
	_ = f.wire.SetKeepalive(carrier.KeepaliveTurn, carrier.KeepaliveTurn, math.MaxInt32)
	f.env.Steering.ProveAgain()
	waits, err := f.env.Steering.LegWaits(ebpf.Tuple(f.Tuple))
	switch {
	case err != nil:
		f.debug("leg of the application", "error", err)
	case waits:
		c.refused = 0
	default:
		if c.refused++; c.refused == refusals {
			c.appFailed()
			return
		}
		c.inject()
	}
}

func (c *client) appFailed() { c.input(c.hs.AppFailed) }

// AppAccepted reports that the listener has accepted the application, whose connect() has
// returned. The connection takes ownership of the descriptor.
func (f *Flow) AppAccepted(fd int) {
	leg := newAppLeg(fd, f.Tuple)
	f.post(func() { f.appAccepted(leg) })
}

func (f *Flow) appAccepted(leg *appLeg) {
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
		if f.env.Steering.Transition(ebpf.Tuple(f.Tuple), f.ISN, ebpf.StateCarrying, ebpf.StateCompleting) != nil {
			return c.AppFailed(now) // it fell back meanwhile
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

// prove connects the queue pair of one carrier to the server's and starts the probe. The
// machine's timer handles a proof that gets no answer.
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
			c.heard(cr)
			cr.Proved()
			result(true)
		case ev.Has(rsocket.EventFailed):
			c.heard(cr)
			result(false)
		}
	}
	cr.Prove(p.Offer, p.Timeout, func(warm bool, err error) {
		switch {
		case err != nil:
			c.f.debug("carrier proof", "carrier", kind, "error", err)
			result(false)
		case warm:
			result(true)
		default:
			c.proofs++
			c.proving = p.Timeout
			c.silent = append(c.silent, cr)
			c.input(func(now time.Time) []negotiate.Action { return c.hs.Proving(now, kind) })
		}
	})
}

func (c *client) heard(cr *carry) {
	c.silent = slices.DeleteFunc(c.silent, func(o *carry) bool { return o == cr })
}

// rememberProof makes this gateway avoid a peer if the proofs of all carriers failed. A
// carrier that another flow has proved was only slow this time. A proof that this gateway
// could not send, or looked at too late, says nothing about the path.
func (c *client) rememberProof() {
	for _, cr := range c.f.carries {
		if cr.ProofHolds() {
			return
		}
	}
	if c.proofs == 0 {
		return
	}
	if !c.f.env.Pulse.WasLate(c.f.start, time.Now(), c.proving) {
		for _, cr := range c.silent {
			cr.Unproved()
		}
	}
	v, _ := c.hs.Verdict()
	c.f.remember(v)
}
