package gateway

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/policy"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// fabric is one RDMA device as the negotiation sees it. Its methods are called
// on the thread of the flow's shard, except meet and offer, which may take their
// time.
type fabric interface {
	kind() negotiate.CarrierKind
	// offer makes the queue pair of a client flow and says how to reach it.
	offer(f *flow, s *loop.Shard) (*carry, negotiate.CarrierOffer, error)
	// met reports whether answer needs no more than it has; otherwise meet is called
	// before.
	met(from negotiate.CarrierOffer, p *negotiate.Proposal) bool
	meet(ctx context.Context, f *flow, from negotiate.CarrierOffer) error
	// answer makes the queue pair of a server flow, to be connected to the client's.
	answer(f *flow, s *loop.Shard, from negotiate.CarrierOffer, p *negotiate.Proposal) (*carry, negotiate.CarrierOffer, error)
	// connect connects a queue pair to the other side's.
	connect(c *carry, to negotiate.CarrierOffer) error
	// warm reports whether the carrier has been proved with this peer, so that
	// the queue pair can be used at once; proved tells that it has.
	warm(c *carry) bool
	proved(c *carry)
	// unproved says that the proof of a flow has not come back, and that no other
	// flow's holds.
	unproved(c *carry)
	// answered tells a client's carrier what the ACCEPT of a peer offers; nil: the
	// peer has declined because no carrier can be had. It reports whether that was
	// about an offer that another gateway has taken, and says nothing about the next.
	answered(f *flow, a *negotiate.Accept) (outdated bool)
	// started tells that c carries, wireLost that its wire leg broke while it
	// did, or was silent for longer than anybody waits. Neither may block.
	started(c *carry)
	wireLost(c *carry, silent bool)
	// reason names what ended the queue pair of c, survives tells whether the flow
	// can go on without it: the peer lives, and has not broken the protocol.
	reason(c *carry, err error) negotiate.Reason
	survives(c *carry, err error) bool
	// convicted tells, when the peer leaves the queue pair of c, whether it has broken the
	// protocol there.
	convicted(c *carry) bool
	// abandon takes the queue pair from a flow that goes on without it. What was sent
	// and not consumed stays where it is until sent is called, once; what the peer
	// may write to is not used again before written is called, at least once. Any
	// goroutine may call both.
	abandon(c *carry) (sent, written func())
	// devices describes what there is.
	devices() []admin.DeviceInfo
	// close ends the device; no flow uses it any more.
	close() error
}

// makeOffers prepares a queue pair per carrier for the PROPOSAL. A carrier
// that cannot be prepared is left out.
func (f *flow) makeOffers(p *negotiate.Proposal) negotiate.Reason {
	s := f.g.shardFor(f)
	reason := negotiate.ReasonNoCommonCarrier
	for _, fb := range f.g.fabrics {
		if !policy.Admits(f.trial, config.Carrier(fb.kind().String())) {
			continue
		}
		if f.resting(fb.kind()) {
			reason = moreLocal(reason, negotiate.ReasonCarrierUnreachable)
			continue
		}
		c, offer, err := fb.offer(f, s)
		if err != nil {
			f.g.log.Debug("offer", "flow_id", f.id, "carrier", fb.kind(), "error", err)
			reason = moreLocal(reason, carrierReason(err))
			continue
		}
		if !f.addCarry(c) {
			s.Post(c.close)
			return negotiate.ReasonClientGone
		}
		p.Carriers = append(p.Carriers, offer)
		if fb.warm(c) { // works with this peer: no second one is needed
			break
		}
	}
	return reason
}

// moreLocal returns which of two reasons for the lack of carriers counts: one that says
// nothing about the peer, if there is one.
func moreLocal(a, b negotiate.Reason) negotiate.Reason {
	if a == negotiate.ReasonNoCommonCarrier || a == negotiate.ReasonCarrierUnreachable {
		return b
	}
	return a
}

// resting reports whether a carrier is left alone with the flow's peer. One that is
// on trial is measured as it is.
func (f *flow) resting(kind negotiate.CarrierKind) bool {
	return f.trial == nil && f.g.peers.Resting(f.peer(), kind, time.Now())
}

// strangers are the fabrics by which the peer has to be met before they can answer.
func (f *flow) strangers(p *negotiate.Proposal) (list []fabric) {
	for _, fb := range f.g.fabrics {
		if from := negotiate.FindCarrier(p.Carriers, fb.kind()); from != nil && !fb.met(*from, p) {
			list = append(list, fb)
		}
	}
	return list
}

// answerOffers prepares what the client offered and we can do, in the order of
// our own preference, and connects it; report makes what is told of what happens
// on it from then on. Carriers that failed already are left out.
func (f *flow) answerOffers(p *negotiate.Proposal, failed map[negotiate.CarrierKind]error, report func(*carry) func(rsocket.Events)) ([]negotiate.CarrierOffer, negotiate.Reason) {
	s := f.g.shardFor(f)
	reason := negotiate.ReasonNoCommonCarrier
	var offers []negotiate.CarrierOffer
	for _, fb := range f.g.fabrics {
		from := negotiate.FindCarrier(p.Carriers, fb.kind())
		if from == nil {
			continue
		}
		if f.resting(fb.kind()) {
			reason = moreLocal(reason, negotiate.ReasonCarrierUnreachable)
			continue
		}
		var c *carry
		var offer negotiate.CarrierOffer
		err := failed[fb.kind()]
		if err == nil {
			c, offer, err = fb.answer(f, s, *from, p)
		}
		if err == nil && !f.addCarry(c) {
			s.Post(c.close)
			return nil, negotiate.ReasonClientGone
		}
		if err == nil {
			c.report = report(c)
			if err = fb.connect(c, *from); err != nil {
				f.dropCarry(c)
			}
		}
		if err != nil {
			f.g.log.Debug("answer", "flow_id", f.id, "carrier", fb.kind(), "error", err)
			reason = moreLocal(reason, carrierReason(err))
			continue
		}
		offers = append(offers, offer)
	}
	if len(offers) > 0 {
		reason = negotiate.ReasonNone
	}
	return offers, reason
}

// errNotHere means that this carrier cannot reach the peer: no failure.
var errNotHere = errors.New("peer is under another kernel")

// errNoDevice means that this host has no device on the flow's own address, or not yet.
var errNoDevice = errors.New("no RDMA device on this address")

// carrierReason is why a queue pair could not be had.
func carrierReason(err error) negotiate.Reason {
	switch short := shortage(err); {
	case short != negotiate.ReasonNone:
		return short
	case errors.Is(err, rmb.ErrNoMemory), errors.Is(err, verbs.ErrNoMemory):
		return negotiate.ReasonNoMemory
	case errors.Is(err, errYielded): // nobody is to remember it
		return negotiate.ReasonDrained
	case errors.Is(err, errNotHere), errors.Is(err, fs.ErrNotExist): // no rendezvous here: another kernel, another shm_dir
		return negotiate.ReasonNoCommonCarrier
	default:
		return negotiate.ReasonDeviceFailed
	}
}

// carryBy starts carrying by one of the prepared carriers and closes the
// others.
func (f *flow) carryBy(kind negotiate.CarrierKind) {
	f.mu.Lock()
	if f.ended {
		f.mu.Unlock()
		return
	}
	var others []*carry
	f.carrier = config.Carrier(kind.String())
	for _, c := range f.carries {
		if c.kind == kind {
			f.picked = c
		} else {
			others = append(others, c)
		}
	}
	f.carries = nil
	f.ctl = newWireControl(f, f.g.shardFor(f))
	if f.picked != nil {
		f.carries = []*carry{f.picked}
		f.ctl.carry, f.books = f.picked, newCarriedLedger()
	} else {
		f.relay = newRelay(f, f.ctl)
		f.ctl.relay, f.books = f.relay, newLedger()
		f.becauseLocked(negotiate.ReasonCarrierUnreachable, f.side == config.SideServer) // the client proves
	}
	picked, leg := f.picked, f.leg
	f.mu.Unlock()

	f.to(StateCarrying)
	f.g.count.carried(config.Carrier(kind.String()), time.Since(f.start))
	f.g.peers.Proven(f.tuple.Remote.Addr(), config.Carrier(kind.String()))
	if picked != nil {
		f.g.contradicted(f)
	}
	f.wire.MarkCarrying()
	f.closeCarries(others, func() {})
	if picked == nil {
		return // the relay starts with the records
	}
	_ = f.wire.SetKeepalive(0, 0, 0) // of a server that waited for the last word; the fabric knows better now
	picked.s.Post(func() {
		picked.s.WorksFor(f)
		if fd, err := leg.take(); err == nil { // else the flow has ended
			picked.start(fd)
		}
	})
}

// records hands the wire leg over from CLC to records.
func (f *flow) records(rest []byte) {
	f.mu.Lock()
	ctl, leg, ended := f.ctl, f.leg, f.ended
	f.mu.Unlock()
	if ended || ctl == nil {
		return
	}
	rest = append([]byte(nil), rest...) // the caller's buffer
	ctl.s.Post(func() {                 // behind the start of a queue pair
		ctl.s.WorksFor(f)
		ctl.begin(leg, rest)
	})
}

// chosen is the carry of a flow with an rdma carrier.
func (f *flow) chosen() *carry {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.picked
}
