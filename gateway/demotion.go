package gateway

import (
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
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

// broken is an error of the queue pair or of the peer's protocol. Where the peer
// lives the flow goes on over the relay: first it may say why.
func (c *carry) broken() {
	if c.Closed() || c.demoting != "" || c.needless() {
		return
	}
	err := c.EP.Err()
	if err == nil {
		err = rsocket.ErrConnection // behind the end of the stream, with bytes still under way
	}
	reason := c.Reason(err)
	if !c.Survives(err) {
		c.f.abort(reason, false)
		return
	}
	c.failure, c.demoting = err, reason.String()
	c.patience = loop.NewTimer(func() {
		c.Shard.WorksFor(c.f)
		c.demote(c.demoting)
	})
	c.Shard.SetTimer(&c.patience, time.Now().Add(breakPatience))
}

// needless: the queue pair has nothing to do any more. The peer's application has
// everything, and all of its bytes are here.
func (c *carry) needless() bool {
	b := &c.f.books
	return b.tx == txTaken && b.rx != rxOpen && c.EP.ReceivedOffset() == b.final
}

// demote moves the flow from its queue pair to the relay, at the byte where it
// stands: final for the flow. What has arrived is given to the application as far
// as that takes it now; the rest the peer sends again. The caller is on the shard.
func (c *carry) demote(cause string) {
	switch {
	case c.Closed(), !c.f.ctl.mayLeave(cause): // where no records are exchanged yet, begin calls again
		return
	}
	c.Shard.Collect()
	if !c.Closed() && !c.f.books.legDone {
		c.pumpRx()
	}
	switch {
	case c.Closed():
		return
	case c.failed: // the application has reset the connection
		c.f.abort(negotiate.ReasonNone, false)
		return
	case cause == DemotedByPeer && c.Convicted():
		c.f.abort(negotiate.ReasonProtocolError, false)
		return
	}
	if r, old := c.f.depart(cause); r != nil {
		c.leave(r, cause, old)
	}
}

// depart gives the flow a relay instead of its queue pair; nil: the flow has
// ended. The old carrier keeps the bytes that it carried.
func (f *flow) depart(cause string) (*relay, config.Carrier) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return nil, config.CarrierNone
	}
	old := f.carrier
	f.relay, f.carries, f.carrier, f.demoted = newRelay(f, f.ctl), nil, config.CarrierRelay, cause
	f.booked = admin.ByteCount{Tx: f.tx.Load(), Rx: f.rx.Load()}
	f.g.count.demoted(old, cause, f.booked)
	return f.relay, old
}

// leave hands the flow over to the relay. The records that say so leave at once, if
// the wire leg takes them.
func (c *carry) leave(r *relay, cause string, from config.Carrier) {
	b, ctl := &c.f.books, c.f.ctl
	b.leave(c.EP.SentOffset(), c.EP.FreedOffset(), c.EP.ConsumedOffset())
	c.Shard.SetTimer(&c.patience, time.Time{})
	sent, written := c.Depart()
	r.resume(c, &origin{tail: c.EP.Tail, sent: sync.OnceFunc(sent), written: written})
	ctl.relay = r
	first := negotiate.AppendDemote(ctl.record[:0])
	first = negotiate.AppendHave(first, b.consumed, relayWindow)
	if b.tx != txOpen {
		first = negotiate.AppendEnd(first, b.read)
	}
	ctl.send(first)
	c.f.g.demotions.note(c, from, cause)
	if c.failure != nil {
		c.f.g.rests.Failed(c.f.peer(), c.Kind, time.Now())
	}
}
