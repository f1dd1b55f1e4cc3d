package conn

import (
	"errors"
	"math"
	"syscall"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
	"github.com/smcgw/smcgw/rsocket"
)

// expect prepares a server's connection whose client has proved its address by its reply to
// the answer to its SYN. ago is how long ago that SYN arrived at this host. shed, if set,
// says why there is no room for the connection: it is then declined once the client's gateway
// has been heard, since its SYN is gone. auto says that the rule has action auto.
func (f *Flow) expect(syn netstack.SYN, ago time.Duration, auto bool, shed negotiate.Reason) {
	f.nonce, f.look, f.auto, f.shed = syn.Nonce, host.LookOf(syn.Raw), auto, shed
	f.ago = ago
}

// Offered is called for each copy of the client's proof, and reports whether the connection
// is to be held there.
func (f *Flow) Offered() (held bool) { return f.step(faults.Offered) }

// NotAccepted reports that a server's flow will get no wire leg, and why.
func (f *Flow) NotAccepted(err error) {
	reason := negotiate.ReasonClientGone
	switch {
	case errors.Is(err, netstack.ErrOverload):
		reason = negotiate.ReasonRateLimit
	default: // the client fell back: its SYN may be on its way to returnSYN
		f.entryDead()
	}
	f.turnAway(reason)
}

// turnAway ends a server's connection that is not to get a wire leg, because of r.
func (f *Flow) turnAway(r negotiate.Reason) { f.post(func() { f.vanish(r) }) }

// Serve gives a server's connection its wire leg: the third ACK has arrived.
func (f *Flow) Serve(conn *netstack.Conn) { f.post(func() { f.serve(conn) }) }

func serverOf(n *negotiator) (*negotiate.Server, bool) {
	if n == nil {
		return nil, false
	}
	s, ok := n.hs.(*negotiate.Server)
	return s, ok
}

// serve begins the handshake after the third ACK.
func (f *Flow) serve(conn *netstack.Conn) {
	began := false // true: the handshake now holds the count taken by the caller of Serve
	defer func() {
		if !began {
			f.env.Work.Done()
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
		HandshakeTimeout: f.env.HandshakeTimeout(), Keys: f.env.Keys.Load(), Binding: bindingOf(conn),
		Seen: &f.env.seen,
	}, f.nonce)
	s := f.newServer(hs)
	began = true
	f.setNegotiator(&s.negotiator)
	if give := f.give; give != nil {
		f.give = nil
		f.BareSYN(give)
	}
	s.begin(hs.Start(f.start.Add(-f.ago), conn.SYNRTT(), confirmed(conn)))
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
	dialled host.Dialling // the pending dial; nil: none
	raw     *rawRelay
	dropped bool // declined: nothing is wanted any more
}

func (f *Flow) newServer(hs *negotiate.Server) *server {
	s := &server{hs: hs}
	s.f, s.s, s.negotiator.hs, s.reading, s.eof = f, f.Shard, hs, hs.Reading, hs.EOF
	// A flow that ended otherwise no longer wants its dial.
	s.cut, s.execute, s.leaving = s.takeIn, s.action, s.stopDial
	return s
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
		f.env.Peers.Met(f.Tuple.Remote.Addr(), a.Proposal.Software)
		f.env.Datagrams.News(ebpf.Tuple(f.Tuple), a.Proposal.DatagramPort, a.Proposal.GatewayID)
		s.meet(a.Proposal)
	case negotiate.Dial:
		s.dial(ebpf.StateServing, s.reached)
	case negotiate.Undial:
		s.recall()
	case negotiate.Drop:
		s.dropped = true
		f.dropLocal()
	case negotiate.DialRaw:
		f.do(f.core.LosesAccept())
		f.remember(negotiate.Verdict{Outcome: negotiate.OutcomeRaw, Reason: negotiate.ReasonAcceptLost, Shown: a.Waited == 0, Waited: a.Waited})
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
	if s.dialled != nil {
		s.dialled.Cancel()
		s.dialled = nil
	}
}

// recall cancels the dial unless the application has accepted it. It moves the entry first:
// from then on the dial's packets no longer pass, so that its outcome cannot change any more.
func (s *server) recall() {
	f, t := s.f, ebpf.Tuple(s.f.Tuple)
	_ = f.env.Steering.Transition(t, f.ISN, ebpf.StateWire, ebpf.StateServing)
	if s.dialled == nil || !s.dialled.Recall() {
		_ = f.env.Steering.Transition(t, f.ISN, ebpf.StateServing, ebpf.StateWire)
		return // the dial's result will come
	}
	s.dialled = nil
	if _, err := f.env.Steering.ForgetRequest(t); err != nil {
		f.debug("request of the application", "error", err)
	}
	s.input(func(now time.Time) []negotiate.Action { return s.hs.Dialled(now, false, negotiate.ReasonNone) })
}

// meet carries out the rendezvous with the client's gateway that some carriers need and that
// takes time, and then answers. The rendezvous goes on even if the flow ends meanwhile,
// because others wait for the same one.
func (s *server) meet(p *negotiate.Proposal) {
	unmet := s.f.unmet(p)
	if len(unmet) == 0 {
		s.answer(p, nil)
		return
	}
	s.f.env.Work.Go(func() {
		defer s.f.contain()
		failed := map[negotiate.CarrierKind]error{}
		for _, prov := range unmet {
			if err := prov.Meet(s.f.env.Context, s.f.Peer(), *negotiate.FindCarrier(p.Carriers, prov.Kind())); err != nil {
				failed[prov.Kind()] = err
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

// answer reserves what the flow needs. Carriers in failed are left out.
func (s *server) answer(p *negotiate.Proposal, failed map[negotiate.CarrierKind]error) {
	s.f.answerOffers(p, failed, s.early, func(offers []negotiate.CarrierOffer, reason negotiate.Reason) {
		s.happened(func(now time.Time) []negotiate.Action { return s.reserved(now, offers, reason) })
	})
}

// reserved tells the machine which carriers are available.
func (s *server) reserved(now time.Time, offers []negotiate.CarrierOffer, reason negotiate.Reason) []negotiate.Action {
	if reason != negotiate.ReasonNone {
		return s.hs.Refused(now, reason)
	}
	return s.hs.Reserved(now, negotiate.Accept{
		GatewayID: s.f.env.GatewayID, HostID: s.f.env.HostID, DatagramPort: s.f.env.Datagrams.Port(), Software: s.f.env.Version, Random: s.f.env.Keys.random(),
		Carriers: offers,
	})
}

// reached tells the machine the result of its dial.
func (s *server) reached(now time.Time, r negotiate.Reason) []negotiate.Action {
	if r == negotiate.ReasonNone {
		// The last word may be long in coming.
		_ = s.f.wire.SetKeepalive(carrier.KeepaliveTurn, carrier.KeepaliveTurn, math.MaxInt32)
	}
	return s.hs.Dialled(now, r == negotiate.ReasonNone, r)
}

// early tells the machine about stream data that overtakes CONFIRM.
func (s *server) early(c *carry) func(rsocket.Events) {
	return func(ev rsocket.Events) {
		if ev.Has(rsocket.EventReadable) {
			s.input(func(now time.Time) []negotiate.Action { return s.hs.PeerData(now, c.Offered()) })
		}
	}
}

// takeIn tells the machine about stream data that no completion has reported yet. The end of
// the wire leg, which comes after that data, travels another way and may be seen first.
func (s *server) takeIn(now time.Time) {
	for _, c := range s.f.carries {
		if c.Shard.Collect(); c.EP.ReceivedOffset() > 0 {
			s.do(s.hs.PeerData(now, c.Offered()))
			return
		}
	}
}

func (s *server) rawDialled(now time.Time, r negotiate.Reason) []negotiate.Action {
	return s.hs.RawDialled(now, r == negotiate.ReasonNone, r)
}

// dial connects to the local application from the client's own address and tells the machine
// the result. The entry changes state first, because the application's answer must be steered
// here.
func (s *server) dial(to ebpf.State, result func(time.Time, negotiate.Reason) []negotiate.Action) {
	f, t := s.f, ebpf.Tuple(s.f.Tuple)
	refused := func(r negotiate.Reason) {
		s.input(func(now time.Time) []negotiate.Action { return result(now, r) })
	}
	if err := f.env.Steering.Transition(t, f.ISN, to, ebpf.StateWire); err != nil {
		refused(negotiate.ReasonClientGone)
		return
	}
	if _, err := f.env.Steering.DestroySocket(t); err != nil {
		f.env.Log.Warn("stale gateway socket", "flow_id", f.ID, "error", err)
	}
	s.dialled = f.env.Legs.Dial(s.s, f.Tuple, f.look, func(fd int, err error) {
		s.s.WorksFor(f)
		s.dialled = nil
		if err != nil {
			f.debug("dial of the application", "error", err)
			_ = f.env.Steering.Transition(t, f.ISN, ebpf.StateWire, to)
			refused(dialReason(err))
			return
		}
		leg := newAppLeg(fd, f.Tuple)
		leg.approach(f.look)
		s.do(s.join(leg, result))
		s.settle()
	})
}

// dialReason maps a dial error to a reason.
func dialReason(err error) negotiate.Reason {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return negotiate.ReasonAppRefused
	// A socket of this gateway, of a proof for instance, has the client's tuple.
	case errors.Is(err, syscall.EADDRINUSE), errors.Is(err, syscall.EADDRNOTAVAIL):
		return negotiate.ReasonAppLegBlocked // the client does not remember this one
	}
	if r := shortage(err); r != negotiate.ReasonNone {
		return r
	}
	return negotiate.ReasonAppUnreachable
}

// join gives the dialled leg to the flow and the result to the machine. It resets a leg that
// is no longer wanted.
func (s *server) join(leg *appLeg, result func(time.Time, negotiate.Reason) []negotiate.Action) []negotiate.Action {
	if !s.f.setLeg(leg) {
		leg.reset()
		return nil
	}
	return result(time.Now(), negotiate.ReasonNone)
}
