package gateway

import (
	"sync"
	"time"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
)

// Why a flow left its queue pair, besides the reasons of package negotiate that
// name what failed.
const (
	// DemotedByOperator: the admin socket was asked to.
	DemotedByOperator = "operator"
	// DemotedByPeer: the peer's gateway began.
	DemotedByPeer = "peer"
)

// breakPatience is how long a flow whose queue pair has failed waits for what the
// peer has to say on the wire leg: the queue pair of a flow that the peer has
// ended fails too, and may be ahead of that.
const breakPatience = 50 * time.Millisecond

// departure is what is left of a queue pair whose flow goes on over the relay.
type departure struct {
	first  []byte                 // records to send before all others
	reader negotiate.RecordReader // of the wire leg, where it stands
	rest   []byte                 // read from it and not looked at
	books  ledger

	tail    func(offset uint64) []byte // bytes sent that the peer may need again
	sent    func()                     // nobody needs the tail any more; called once or more
	written func()                     // the peer has left its queue pair for good; called once or more
}

// broken is an error of the queue pair or of the peer's protocol. Where the peer
// lives the flow goes on over the relay: first it may say why.
func (c *carry) broken() {
	if c.closed || c.demoting != "" || c.needless() {
		return
	}
	err := c.ep.Err()
	if err == nil {
		err = rsocket.ErrConnection // behind the end of the stream, with bytes still under way
	}
	reason := c.fabric.reason(c, err)
	if !c.fabric.survives(c, err) {
		c.f.abort(reason, false)
		return
	}
	c.failure, c.demoting = err, reason.String()
	c.patience = newTimer(func() {
		c.s.worksFor(c.f)
		c.demote(c.demoting)
	})
	c.s.setTimer(&c.patience, time.Now().Add(breakPatience))
}

// needless: the queue pair has nothing to do any more. The peer's application has
// everything, and all of its bytes are here.
func (c *carry) needless() bool {
	return c.txEnded && c.rxKnown && c.ep.ReceivedOffset() == c.rxFinal && c.f.ctl.delivered()
}

// demote moves the flow from its queue pair to the relay, at the byte where it
// stands: final for the flow. What has arrived is given to the application as far
// as that takes it now; the rest the peer sends again. The caller is on the shard.
func (c *carry) demote(cause string) {
	switch {
	case c.closed:
		return
	case !c.started: // it has been posted
		c.s.post(func() {
			c.s.worksFor(c.f)
			c.demote(cause)
		})
		return
	case !c.f.ctl.mayLeave(cause):
		return // the wire leg is not ours yet: begin calls again
	}
	c.s.collect()
	if !c.closed && !c.legDone {
		c.pumpRx()
	}
	switch {
	case c.closed:
		return
	case c.failed: // the application has reset the connection
		c.f.abort(negotiate.ReasonNone, false)
		return
	case cause == DemotedByPeer && c.fabric.convicted(c):
		c.f.abort(negotiate.ReasonProtocolError, false)
		return
	}
	if r, old := c.f.depart(cause); r != nil {
		c.leave(r, cause, old)
	}
}

// depart gives the flow a relay instead of its queue pair; nil: the flow has
// ended. The old carrier keeps the bytes that it carried.
func (f *flow) depart(cause string) (*relay, Carrier) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return nil, CarrierNone
	}
	old := f.carrier
	f.relay, f.carries, f.carrier, f.demoted = newRelay(f), nil, CarrierRelay, cause
	f.booked = ByteCount{Tx: f.tx.Load(), Rx: f.rx.Load()}
	f.g.count.demoted(old, cause, f.booked)
	return f.relay, old
}

// leave hands the flow over to the relay.
func (c *carry) leave(r *relay, cause string, from Carrier) {
	d := &departure{tail: c.ep.Tail}
	d.books = ledger{
		peer: peerCarried, demoted: true,
		read: c.ep.SentOffset(), freed: c.ep.FreedOffset(), ended: c.txEnded,
		received: c.ep.ConsumedOffset(), endKnown: c.rxKnown, final: c.rxFinal,
	}
	d.books.consumed, d.books.reported = d.books.received, d.books.received
	c.f.ctl.leave(d)
	d.first = negotiate.AppendDemote(d.first)
	d.first = negotiate.AppendHave(d.first, d.books.consumed, relayWindow)
	if c.txEnded {
		d.first = negotiate.AppendEnd(d.first, d.books.read)
	}
	c.s.setTimer(&c.patience, time.Time{})
	delete(c.queue.flows, c.qp.Num())
	c.s.flush()
	c.closed = true
	c.ep.Leave()
	sent, written := c.fabric.abandon(c)
	d.sent, d.written = sync.OnceFunc(sent), written
	c.f.g.demotions.note(c, from, cause)
	if c.failure != nil {
		c.f.g.rests.failed(c.f.peer(), c.kind, time.Now())
	}
	r.resume(c, d)
}
