package gateway

import (
	"context"
	"errors"
	"math"
	"syscall"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/host"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
	"github.com/smcgw/smcgw/rsocket"
)

// Proved is called by netstack for a connection whose offer the programs have
// answered, and whose client has proved its address by what it said to that. From
// here on it has a flow. One that there is no room for is declined when its gateway has
// been heard: its SYN is gone.
func (g *gateway) Proved(syn netstack.SYN) (rtt time.Duration, ok bool) {
	t := host.Tuple(syn.Tuple)
	defer g.containAbout(t)
	e, err := g.steer.Flow(ebpf.Tuple(t))
	if err != nil || e.ISN != syn.ISN || e.State != ebpf.StateWire {
		return 0, false
	}
	old := g.find(t)
	if old != nil && old.isn != syn.ISN {
		old.post(old.replaced)
	}
	f, fresh := g.newFlow(config.SideServer, t, syn.ISN)
	switch {
	case f == nil: // going down
		g.turnAway(syn)
		return 0, false
	case fresh:
		f.nonce, f.look = syn.Nonce, host.LookOf(syn.Raw)
		f.shed = g.admit(f)
	}
	if f.step(faults.Offered) { // at each copy of what the client has said
		return 0, false
	}
	return min(e.ChangedAt-e.OfferedAt, longestRTT), true
}

// OfferedSYN is called by netstack for a SYN with an offer on the tuple of another
// connection: the client has begun anew. It never wants it.
func (g *gateway) OfferedSYN(syn netstack.SYN) bool {
	t := host.Tuple(syn.Tuple)
	defer g.containAbout(t)
	e, err := g.steer.Flow(ebpf.Tuple(t))
	if err != nil || e.ISN != syn.ISN { // else a late copy of the SYN that was answered
		g.beganAnew(t, e.ISN, g.find(t), syn)
	}
	return false
}

// turnAway leaves a connection to the kernel that there is no room for: the SYN, or
// what behind it proved the client's address, which it resets.
func (g *gateway) turnAway(syn netstack.SYN) {
	t := host.Tuple(syn.Tuple)
	if !syn.Proved {
		g.returnSYN(t, syn.ISN, syn.Raw)
		return
	}
	if err := g.steer.Delete(ebpf.Tuple(t), syn.ISN, ebpf.StateWire); err != nil {
		g.log.Debug("connection that was turned away", "tuple", t, "error", err)
	}
}

// NotAccepted is called by netstack for an offered SYN that came to nothing.
func (g *gateway) NotAccepted(syn netstack.SYN, err error) {
	t := host.Tuple(syn.Tuple)
	defer g.containAbout(t)
	f := g.find(t)
	known := f != nil && f.isn == syn.ISN && f.side == config.SideServer
	switch overload := errors.Is(err, netstack.ErrOverload); {
	case overload && !known:
		g.turnAway(syn)
		g.count.fallback(negotiate.ReasonRateLimit, config.SideServer)
	case overload:
		g.turnAway(syn)
		f.post(func() { f.vanish(negotiate.ReasonRateLimit) })
	case !known:
	case errors.Is(err, netstack.ErrHandshakeTimeout):
		f.entryGone()
		f.post(func() { f.vanish(negotiate.ReasonClientGone) })
	default: // the client fell back: its SYN may be on its way to returnSYN
		f.entryDead()
		f.post(func() { f.vanish(negotiate.ReasonClientGone) })
	}
}

func serverOf(n *negotiator) (*negotiate.Server, bool) {
	if n == nil {
		return nil, false
	}
	s, ok := n.hs.(*negotiate.Server)
	return s, ok
}

// Accepted is called by netstack when the third ACK of an offered connection
// has arrived.
func (g *gateway) Accepted(conn *netstack.Conn) {
	defer g.containAbout(host.Tuple(conn.Tuple()))
	f := g.find(host.Tuple(conn.Tuple()))
	if f == nil || f.side != config.SideServer || f.isn != conn.ISN() || !g.hold() {
		conn.Forget()
		return
	}
	f.post(func() { f.serve(conn) })
}

// serve begins the handshake behind the third ACK.
func (f *flow) serve(conn *netstack.Conn) {
	began := false // from then on the handshake has what Accepted holds
	defer func() {
		if !began {
			f.g.wg.Done()
		}
	}()
	if !f.setWire(conn) {
		conn.Forget()
		return
	}
	if f.step(faults.Accepted) {
		return
	}
	hs := negotiate.NewServer(negotiate.ServerConfig{
		HandshakeTimeout: f.g.live.Load().Limits.HandshakeTimeout, Keys: f.g.keys.load(), Binding: bindingOf(conn),
		Seen: &f.g.seen,
	}, f.nonce)
	s := &server{hs: hs}
	s.f, s.s, s.negotiator.hs, s.reading, s.eof = f, f.g.shardFor(f), hs, hs.Reading, hs.EOF
	s.execute, s.leaving = s.action, s.stopDial // a flow that ended otherwise wants it no more
	began = true
	f.setNegotiator(&s.negotiator)
	if give := f.give; give != nil {
		f.give = nil
		s.s.Post(func() {
			s.s.WorksFor(f)
			s.fellBack(hs, give)
		})
	}
	s.begin(hs.Start(time.Now(), conn.SYNRTT(), confirmed(conn)))
}

func confirmed(c *netstack.Conn) negotiate.Confirmed {
	switch c.Confirmed() {
	case netstack.ConfirmYes:
		return negotiate.ConfirmedYes
	case netstack.ConfirmNo:
		return negotiate.ConfirmedNo
	default:
		return negotiate.ConfirmedUnknown
	}
}

// server executes the actions of a server handshake.
type server struct {
	negotiator
	hs      *negotiate.Server
	cancel  func() // of the rendezvous or dial under way; nil: none
	raw     *rawRelay
	dropped bool // declined: no app leg is wanted any more
}

func (s *server) action(a negotiate.Action) {
	f := s.f
	switch a := a.(type) {
	case negotiate.Send:
		s.send(a.Bytes)
	case negotiate.Serve:
		if f.shed != negotiate.ReasonNone {
			s.input(func(now time.Time) []negotiate.Action { return s.hs.Refused(now, f.shed) })
			return
		}
		f.peerID = a.Proposal.GatewayID
		f.g.dgrams.Load().News(ebpf.Tuple(f.tuple), a.Proposal.DatagramPort, a.Proposal.GatewayID)
		s.meet(a.Proposal)
	case negotiate.Drop:
		s.dropped = true
		s.stopDial()
		f.dropLocal()
	case negotiate.DialRaw:
		f.do(f.core.LosesAccept())
		f.g.remember(f, negotiate.Verdict{Outcome: negotiate.OutcomeRaw, Reason: negotiate.ReasonAcceptLost})
		s.dial(ebpf.StateRaw, s.rawDialled)
	case negotiate.RelayRaw:
		s.raw = f.startRaw(s.hs.Mute(), s.look)
	case negotiate.Forward:
		s.raw.forward(a.Bytes)
		s.done = true
	case negotiate.Carry:
		f.carryBy(a.Carrier)
	case negotiate.Records:
		s.done = true
		f.records(a.Rest)
	case negotiate.Abort:
		s.done = true
		s.stopDial()
		f.abortVerdict(a)
	}
}

func (s *server) stopDial() {
	if s.cancel != nil {
		s.cancel()
		s.cancel = nil
	}
}

// meet makes the acquaintance of the client's gateway, where a carrier needs that
// and it takes time, and then answers.
func (s *server) meet(p *negotiate.Proposal) {
	strangers := s.f.strangers(p)
	if len(strangers) == 0 {
		s.answer(p, nil)
		return
	}
	ctx, cancel := context.WithCancel(s.f.g.ctx)
	s.cancel = cancel
	s.f.g.wg.Go(func() {
		defer s.f.contain()
		defer cancel()
		failed := map[negotiate.CarrierKind]error{}
		for _, fb := range strangers {
			if err := fb.Meet(ctx, s.f.peer(), *negotiate.FindCarrier(p.Carriers, fb.Kind())); err != nil {
				failed[fb.Kind()] = err
			}
		}
		s.input(func(time.Time) []negotiate.Action {
			if !s.done && !s.dropped {
				s.answer(p, failed)
			}
			return nil
		})
	})
}

// answer reserves what the flow needs and then, last since the application sees
// it, dials. Carriers that failed already are left out.
func (s *server) answer(p *negotiate.Proposal, failed map[negotiate.CarrierKind]error) {
	offers, reason := s.f.answerOffers(p, failed, s.early)
	if reason != negotiate.ReasonNone {
		s.input(func(now time.Time) []negotiate.Action { return s.hs.Refused(now, reason) })
		return
	}
	s.dial(ebpf.StateServing, func(now time.Time, reason negotiate.Reason) []negotiate.Action {
		if reason != negotiate.ReasonNone {
			return s.hs.Refused(now, reason)
		}
		_ = s.f.wire.SetKeepalive(carrier.VigilTurn, carrier.VigilTurn, math.MaxInt32) // the last word may be long in coming
		return s.hs.Served(now, negotiate.Accept{
			GatewayID: s.f.g.id, HostID: s.f.g.hostID, DatagramPort: s.f.g.dgrams.Load().Port(), Random: s.f.g.keys.random(),
			Carriers: offers,
		})
	})
}

// early tells the machine about stream data that overtakes CONFIRM.
func (s *server) early(c *carry) func(rsocket.Events) {
	return func(ev rsocket.Events) {
		if ev.Has(rsocket.EventReadable) {
			s.input(func(now time.Time) []negotiate.Action { return s.hs.PeerData(now, c.Kind) })
		}
	}
}

func (s *server) rawDialled(now time.Time, r negotiate.Reason) []negotiate.Action {
	return s.hs.RawDialled(now, r == negotiate.ReasonNone, r)
}

// dial connects to the local application from the client's own address, and tells
// the machine the result. The application's answer has to be steered to us, so the
// entry moves first.
func (s *server) dial(to ebpf.State, result func(time.Time, negotiate.Reason) []negotiate.Action) {
	f, t := s.f, ebpf.Tuple(s.f.tuple)
	refused := func(r negotiate.Reason) {
		s.input(func(now time.Time) []negotiate.Action { return result(now, r) })
	}
	if err := f.g.steer.Transition(t, f.isn, to, ebpf.StateWire); err != nil {
		refused(negotiate.ReasonClientGone)
		return
	}
	if _, err := f.g.steer.DestroySocket(t); err != nil {
		f.g.log.Warn("stale gateway socket", "flow_id", f.id, "error", err)
	}
	s.cancel = f.g.legs.Dial(s.s, f.tuple, f.look, func(fd int, err error) {
		s.s.WorksFor(f)
		if err != nil {
			f.g.log.Debug("dial of the application", "flow_id", f.id, "error", err)
			_ = f.g.steer.Transition(t, f.isn, ebpf.StateWire, to)
			refused(dialReason(err))
			return
		}
		leg := newAppLeg(fd, f.tuple)
		leg.approach(f.look)
		s.do(s.join(leg, result))
		s.settle()
	})
}

// dialReason is why the application could not be reached.
func dialReason(err error) negotiate.Reason {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return negotiate.ReasonAppRefused
	}
	if r := shortage(err); r != negotiate.ReasonNone {
		return r
	}
	return negotiate.ReasonAppUnreachable
}

// join gives the dialled leg to the flow and the result to the machine; a leg
// nobody wants any more is reset.
func (s *server) join(leg *appLeg, result func(time.Time, negotiate.Reason) []negotiate.Action) []negotiate.Action {
	switch {
	case !s.f.setLeg(leg):
		leg.reset()
	case s.dropped:
		s.f.dropLocal()
	default:
		return result(time.Now(), negotiate.ReasonNone)
	}
	return nil
}
