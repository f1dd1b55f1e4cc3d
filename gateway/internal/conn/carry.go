package conn

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
)

// readBudget is how many reads one flow may do in a turn before the next flow gets its
// share.
const readBudget = 4

// carry is the pump of a flow with a link: it moves bytes between the app leg's
// descriptor and the link's endpoint. Only the thread of its shard touches it.
//
//	tx  read app leg ─► peer's RMB ─► (app's FIN) END on the wire leg ─► HAVE{final} from the peer
//	rx  RMB ─► write app leg ─► (END reached) shutdown app leg ─► HAVE{final} to the peer
//
// The end of a direction is what END says on the wire leg; rsocket SHUTDOWN is
// only a hint (docs/PROTOCOL.md "Records").
type carry struct {
	*carrier.Link
	f  *Flow
	fd int // the app leg, -1 until start

	legEdges
	queued bool                 // on the shard's again list
	report func(rsocket.Events) // until start: the negotiation wants to know
	faulty bool                 // faults are injected

	lastBytes lastBytes // whether the app's reset waits for them

	failure    error      // of the queue pair
	unanswered bool       // failure: by the silence of the peer
	patience   loop.Timer // the core's

	stall *life.StallWatch // nil: nothing is suspected
}

var _ carrier.WireLeg = (*carry)(nil) // what a link looks for in its user

// newCarry is that of a flow, for a link that is about to be made.
func (f *Flow) newCarry() *carry {
	c := &carry{f: f, fd: -1}
	c.patience = loop.NewTimer(func() {
		c.Shard.WorksFor(f)
		f.do(f.core.Patience())
	})
	return c
}

// Completed implements carrier.User.
func (c *carry) Completed(ev rsocket.Events, ok bool) {
	switch {
	case !c.Carries():
		if c.report != nil && ev != 0 {
			c.report(ev)
		}
	case !ok:
		c.broken()
	default:
		c.later() // in this turn, after its other completions: what they brought is written in one piece
	}
}

// Broken implements carrier.User.
func (c *carry) Broken() { c.broken() }

// Violated implements carrier.User.
func (c *carry) Violated() { c.f.abort(negotiate.ReasonProtocolError, false) }

// Ending implements carrier.WireLeg: the client's kernel may answer for the tuple, from
// TIME_WAIT, which says nothing about its gateway.
func (c *carry) Ending() bool { return c.f.state() > life.Carrying }

// KeepAlive implements carrier.WireLeg.
func (c *carry) KeepAlive(every time.Duration, probes int) {
	_ = c.f.wire.SetKeepalive(every, every, probes)
}

// Ask implements carrier.WireLeg.
func (c *carry) Ask() { c.f.post(c.f.ask) }

// start lets bytes flow between fd, which the carry owns from here on, and
// the queue pair.
func (c *carry) start(fd int) {
	if c.Closed() {
		return
	}
	c.fd, c.report, c.faulty = fd, nil, c.f.env.Faults != nil
	c.Begin()
	c.readable, c.writable = true, true
	if err := c.Shard.Join(c, fd); err != nil {
		c.f.abort(negotiate.ReasonDeviceFailed, false)
		return
	}
	if c.EP.Err() != nil { // the relay goes on with the leg as it is watched
		c.broken()
		return
	}
	c.pump()
}

// pump moves what can be moved, both ways, and ends what has ended.
func (c *carry) pump() {
	if !c.Carries() || c.Halfway {
		return
	}
	if !c.f.core.LegDone {
		c.pumpRx()
		c.pumpTx()
	}
	if c.faulty && c.f.tx.Load()+c.f.rx.Load() > 0 {
		c.f.step(faults.Carrying)
	}
	if c.failed && !c.Closed() && !c.queued && c.placed() {
		// Nothing more can be read, or the peer has no room for it now: the
		// reset does not wait, as it does not for a receiver's full buffer.
		c.f.abort(negotiate.ReasonAppReset, false)
		return
	}
	c.settle()
}

// pumpTx reads from the application straight into the memory the peer granted.
func (c *carry) pumpTx() {
	for budget := readBudget; c.readable && c.f.core.Tx == life.TxOpen && !c.Closed(); budget-- {
		if budget == 0 {
			c.later()
			return
		}
		span := c.EP.WriteSpan()
		if len(span) == 0 {
			c.blocked()
			return
		}
		span = span[:min(len(span), c.ReadCap())]
		n, got := c.read(c.fd, span, c.Shard.Now())
		switch got {
		case legBytes:
		case legEnd:
			c.endTx()
			return
		case legNothing, legReset:
			return
		}
		c.Halfway = true
		c.f.sent(n) // before the peer can have them
		err := c.EP.Commit(n)
		c.Halfway = false
		if err != nil {
			c.broken()
			return
		}
		c.Shard.NoteRead(c.fd, n)
	}
}

// pumpRx writes what the peer placed in the RMB to the application.
func (c *carry) pumpRx() {
	taken := c.deliver()
	if c.Closed() {
		return
	}
	c.FreeRetired()
	if taken > 0 && c.f.core.Rx == life.RxOpen {
		c.FitRing(taken)
	}
}

func (c *carry) deliver() (taken int) {
	books := &c.f.core.Ledger
	for c.writable && books.Rx < life.RxShut && !c.Closed() && !c.failed {
		span := c.EP.ReadSpan()
		if len(span) == 0 {
			c.endRx()
			return taken
		}
		if books.Rx != life.RxOpen && c.EP.ReceivedOffset() > books.Final {
			c.f.abort(negotiate.ReasonProtocolError, false)
			return taken
		}
		n := c.write(c.fd, span)
		if n == 0 {
			return taken
		}
		c.Halfway = true
		err := c.EP.Consume(n)
		c.Halfway = false
		taken += n
		c.f.rx.Add(uint64(n))
		if err != nil {
			c.broken()
			return taken
		}
	}
	return taken
}

// resetPatience is how long the reset of an application may wait for its last
// bytes on a network that loses some.
const resetPatience = 300 * time.Millisecond

// lastBytes is whether the reset of an application waits for the bytes in front of it.
//
//	notAwaited ── the reset is read ──► awaited ── resetPatience ──► givenUp
type lastBytes uint8

const (
	notAwaited lastBytes = iota
	awaited
	givenUp
)

// placed tells whether what was sent before a reset is in the peer's memory. The
// reset goes by the wire leg and would overtake what has to be sent again; an
// answer before a close with unread bytes is heard natively, as a rule.
func (c *carry) placed() bool {
	if !c.Lossy || c.lastBytes == givenUp || c.EP.Placed() {
		return true
	}
	if c.lastBytes == notAwaited {
		c.lastBytes = awaited
		if c.EP.Keepalive() != nil { // its completion is after all others
			return true
		}
		c.Shard.After(resetPatience, func() {
			c.Shard.WorksFor(c.f)
			c.lastBytes = givenUp
			c.pump()
		})
	}
	return false
}

// endTx announces the end of the application's bytes.
func (c *carry) endTx() {
	if c.EP.Shutdown() != nil { // a hint; END is what counts, of bytes that got through
		c.f.core.LegEndsUnsaid(c.EP.SentOffset())
		c.broken()
		return
	}
	c.f.do(c.f.core.LegEnds(c.EP.SentOffset()))
	c.f.rouse()
}

// blocked: the endpoint reports writable when there is room again, except where
// there never will be: it is broken, or the peer has closed a direction that is
// ours to end.
func (c *carry) blocked() {
	switch {
	case c.EP.Err() != nil:
		c.broken()
	case c.EP.Blocked() == rsocket.BlockedClosed:
		c.f.abort(negotiate.ReasonProtocolError, false)
	}
}

// endRx shuts the application's read side down once every byte before END has
// been written to it.
func (c *carry) endRx() {
	b := &c.f.core.Ledger
	if b.Rx != life.RxKnown || c.EP.ConsumedOffset() != b.Final {
		return
	}
	_ = unix.Shutdown(c.fd, unix.SHUT_WR)
	c.f.do(c.f.core.LegShut())
}

// wireLost: the peer has left the wire leg. After END both ways it does so when all
// its bytes are here, which is how many there are; others will not come any more.
func (c *carry) wireLost(silent bool) (received uint64) {
	if !c.f.core.BothEnd() {
		c.WireLost(silent)
	} else if !c.Closed() {
		c.Shard.Collect()
	}
	return c.EP.ReceivedOffset()
}

// later puts the flow at the end of the shard's turn.
func (c *carry) later() {
	if !c.queued {
		c.queued = true
		c.Shard.Later(c)
	}
}

// settle notices that the app leg's kernel has delivered everything after both
// directions have ended. Until then the steering of the app leg must stay.
func (c *carry) settle() {
	b := &c.f.core.Ledger
	if b.Tx == life.TxOpen || b.Rx < life.RxShut || b.LegDone || c.Closed() || !legDelivered(c.fd) {
		return
	}
	c.Shard.Leave(c.fd)
	c.f.do(c.f.core.LegDelivered())
}

// lastWords gives the application what arrived before the flow was aborted: a
// server that answers and resets, because it closes with unread bytes, is heard
// natively too. What the application's kernel does not take at once is lost.
func (c *carry) lastWords() {
	c.Shard.WorksFor(c.f)
	if !c.Carries() || c.Halfway || c.f.core.LegDone || c.failed {
		return
	}
	c.Shard.Collect()
	for {
		span := c.EP.ReadSpan()
		if len(span) == 0 {
			return
		}
		n, errno := loop.RawSend(c.fd, span)
		if errno != 0 || c.EP.Consume(n) != nil {
			return
		}
		c.f.rx.Add(uint64(n))
	}
}

// close ends the link. The app leg's descriptor stays with the leg.
func (c *carry) close() {
	if c.Closed() {
		return
	}
	c.Shard.WorksFor(c.f)
	if c.Carries() && !c.f.core.LegDone {
		c.Shard.Leave(c.fd)
	}
	c.Shard.SetTimer(&c.patience, time.Time{})
	c.Close()
}

// Owner implements loop.Member.
func (c *carry) Owner() loop.Owner { return c.f }

// Event implements loop.Member: it takes edges of the app leg.
func (c *carry) Event(edges uint32) {
	c.take(edges)
	c.pump()
}

// Service implements loop.Servicer: it goes on where the budget of a turn was used up.
func (c *carry) Service() {
	c.queued = false
	c.pump()
}
