package gateway

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

const (
	// readBudget is how many reads one flow may do in a turn before the next
	// flow gets its share.
	readBudget = 4
	// readCap bounds one read, so that a bulk flow announces its bytes while
	// the next ones are still being copied.
	readCap = 256 << 10
	// farReadCap is readCap of flows over a network: what fills grants of a farRing
	// without a remainder.
	farReadCap = farRing / 4
)

// carry is the data path of one flow on an rdma carrier: the app leg's
// descriptor, the rsocket endpoint on its queue pair, and where the two
// directions stand. Only the thread of its shard touches it.
//
//	tx  read app leg ─► peer's RMB ─► (app's FIN) END on the wire leg ─► HAVE{final} from the peer
//	rx  RMB ─► write app leg ─► (END reached) shutdown app leg ─► HAVE{final} to the peer
//
// The end of a direction is what END says on the wire leg; rsocket SHUTDOWN is
// only a hint (docs/PROTOCOL.md "Records").
type carry struct {
	s       *loop.Shard
	f       *flow
	kind    negotiate.CarrierKind
	fabric  fabric
	peer    any         // the fabric's own
	queue   *loop.Queue // of its device on its shard
	qp      verbs.QP
	ep      *rsocket.Endpoint
	arena   *rmb.Arena // of the endpoint
	rings   ringPlan
	fitting bool   // memory for another ring is on its way
	reap    func() // after a region was freed that may have been the peer's last; set if rings can change
	settled func() // after close, once: frees the endpoint's memory when the peer cannot write to it any more
	fd      int    // the app leg, -1 until start

	probeLen int // the proof: one full path MTU
	seed     uint64
	lossy    bool // proofs can be lost on the way
	proved   bool

	legEdges
	queued  bool                 // on the shard's again list
	report  func(rsocket.Events) // until start: the negotiation wants to know
	started bool                 // bytes may flow: CONFIRM was sent or received
	faulty  bool                 // faults are injected

	waiting bool // the app's reset waits for the last bytes
	hurry   bool // but no longer
	closed  bool // the endpoint is gone, or the flow has left it

	failure  error  // of the queue pair
	demoting string // the queue pair has failed, and why; the flow leaves it when patience ends
	patience loop.Timer

	stall *stallWatch // nil: nothing is suspected
}

// Complete implements loop.Completer: it is called for every completion of the flow's queue pair.
func (c *carry) Complete(wc *verbs.WC) {
	if c.closed {
		return
	}
	ev := c.ep.HandleWC(wc)
	switch {
	case !c.started:
		if c.report != nil && ev != 0 {
			c.report(ev)
		}
	case ev.Has(rsocket.EventFailed), wc.Status != verbs.WCSuccess:
		c.broken()
	default:
		c.later() // in this turn, behind its other completions: what they brought is written in one piece
	}
}

// start lets bytes flow between fd, which the carry owns from here on, and
// the queue pair.
func (c *carry) start(fd int) {
	if c.closed {
		return
	}
	c.fd, c.started, c.report, c.faulty = fd, true, nil, c.f.g.faults != nil
	c.fabric.started(c)
	c.readable, c.writable = true, true
	if err := c.s.Join(c, fd); err != nil {
		c.f.abort(negotiate.ReasonDeviceFailed, false)
		return
	}
	if c.ep.Err() != nil { // the relay goes on with the leg as it is watched
		c.broken()
		return
	}
	c.pump()
}

// pump moves what can be moved, both ways, and ends what has ended.
func (c *carry) pump() {
	if !c.started || c.closed {
		return
	}
	if !c.f.books.legDone {
		c.pumpRx()
		c.pumpTx()
	}
	if c.faulty && c.f.tx.Load()+c.f.rx.Load() > 0 {
		c.f.step(faults.Carrying)
	}
	if c.failed && !c.closed && !c.queued && c.placed() {
		// Nothing more can be read, or the peer has no room for it now: the
		// reset does not wait, as it does not for a receiver's full buffer.
		c.f.abort(negotiate.ReasonNone, false)
		return
	}
	c.settle()
}

// pumpTx reads from the application straight into the memory the peer granted.
func (c *carry) pumpTx() {
	for budget := readBudget; c.readable && c.f.books.tx == txOpen && !c.closed; budget-- {
		if budget == 0 {
			c.later()
			return
		}
		span := c.ep.WriteSpan()
		if len(span) == 0 {
			c.blocked()
			return
		}
		span = span[:min(len(span), c.readCap())]
		n, got := c.read(c.fd, span)
		switch got {
		case legBytes:
		case legEnd:
			c.endTx()
			return
		case legNothing, legReset:
			return
		}
		err := c.ep.Commit(n)
		c.f.tx.Add(uint64(n))
		c.f.reads.Add(1)
		if err != nil {
			c.broken()
			return
		}
		c.s.NoteRead(c.fd, n)
	}
}

// readCap bounds one read. A message over a network costs a train of its own for
// either end of it, so there are fewer.
func (c *carry) readCap() int {
	if c.lossy {
		return farReadCap
	}
	return readCap
}

// pumpRx writes what the peer placed in the RMB to the application.
func (c *carry) pumpRx() {
	taken := c.deliver()
	if c.closed {
		return
	}
	if r := c.ep.RetiredRing(); r != nil { // seldom behind the last byte of it, and then the flow may be idle
		c.free(r)
	}
	if taken > 0 {
		c.fitRing(taken)
	}
}

func (c *carry) deliver() (taken int) {
	books := &c.f.books
	for c.writable && books.rx < rxShut && !c.closed && !c.failed {
		span := c.ep.ReadSpan()
		if len(span) == 0 {
			c.endRx()
			return taken
		}
		if books.rx != rxOpen && c.ep.ReceivedOffset() > books.final {
			c.f.abort(negotiate.ReasonProtocolError, false)
			return taken
		}
		n := c.write(c.fd, span)
		if n == 0 {
			return taken
		}
		err := c.ep.Consume(n)
		taken += n
		c.f.rx.Add(uint64(n))
		c.f.writes.Add(1)
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

// placed tells whether what was sent before a reset is in the peer's memory. The
// reset goes by the wire leg and would overtake what has to be sent again; an
// answer before a close with unread bytes is heard natively, as a rule.
func (c *carry) placed() bool {
	if !c.lossy || c.hurry || c.ep.Placed() {
		return true
	}
	if !c.waiting {
		c.waiting = true
		if c.ep.Keepalive() != nil { // its completion is behind all others
			return true
		}
		c.s.After(resetPatience, func() {
			c.s.WorksFor(c.f)
			c.hurry = true
			c.pump()
		})
	}
	return false
}

// endTx announces the end of the application's bytes.
func (c *carry) endTx() {
	if c.ep.Shutdown() != nil { // a hint; END is what counts, of bytes that got through
		c.f.books.end(c.ep.SentOffset())
		c.broken()
		return
	}
	c.f.ctl.sendEnd(c.ep.SentOffset())
}

// blocked: the endpoint reports writable when there is room again, except where
// there never will be: it is broken, or the peer has closed a direction that is
// ours to end.
func (c *carry) blocked() {
	switch {
	case c.ep.Err() != nil:
		c.broken()
	case c.ep.Blocked() == rsocket.BlockedClosed:
		c.f.abort(negotiate.ReasonProtocolError, false)
	}
}

// endRx shuts the application's read side down once every byte before END has
// been written to it.
func (c *carry) endRx() {
	b := &c.f.books
	if b.rx != rxKnown || c.ep.ConsumedOffset() != b.final {
		return
	}
	_ = unix.Shutdown(c.fd, unix.SHUT_WR)
	c.f.ctl.shut()
}

// peerEnd is END of the wire leg, which the ledger knows by now.
func (c *carry) peerEnd() {
	c.f.step(faults.Closing)
	c.f.to(StateClosing)
	c.pump()
}

// wireLost: the peer has left the wire leg. Behind END both ways it does so when all
// its bytes are here; others will not come any more.
func (c *carry) wireLost(silent bool) {
	b := &c.f.books
	switch {
	case b.tx == txOpen || b.rx == rxOpen:
		c.fabric.wireLost(c, silent)
	case b.rx == rxKnown && !c.closed:
		c.s.Collect()
		b.received = c.ep.ReceivedOffset()
	}
}

// later puts the flow at the end of the shard's turn.
func (c *carry) later() {
	if !c.queued {
		c.queued = true
		c.s.Later(c)
	}
}

// settle notices that the app leg's kernel has delivered everything after both
// directions have ended. Until then the steering of the app leg must stay.
func (c *carry) settle() {
	b := &c.f.books
	if b.tx == txOpen || b.rx < rxShut || b.legDone || c.closed || !legDelivered(c.fd) {
		return
	}
	c.s.Leave(c.fd)
	c.f.ctl.legDelivered()
}

// lastWords gives the application what arrived before the flow was aborted: a
// server that answers and resets, because it closes with unread bytes, is heard
// natively too. What the application's kernel does not take at once is lost.
func (c *carry) lastWords() {
	c.s.WorksFor(c.f)
	if !c.started || c.closed || c.f.books.legDone || c.failed {
		return
	}
	c.s.Collect()
	for {
		span := c.ep.ReadSpan()
		if len(span) == 0 {
			return
		}
		n, errno := loop.RawSend(c.fd, span)
		if errno != 0 || c.ep.Consume(n) != nil {
			return
		}
		c.f.rx.Add(uint64(n))
	}
}

// close releases the queue pair. The app leg's descriptor stays with the leg.
func (c *carry) close() {
	if c.closed {
		return
	}
	c.s.WorksFor(c.f)
	c.closed = true
	if c.started && !c.f.books.legDone {
		c.s.Leave(c.fd)
	}
	c.s.SetTimer(&c.patience, time.Time{})
	delete(c.queue.Members, c.qp.Num())
	c.s.Flush() // the last that was posted leaves as the last that was written natively does
	if err := errors.Join(c.qp.Close(), c.ep.Close()); err != nil {
		c.f.g.log.Warn("close queue pair", "flow_id", c.f.id, "error", err)
	}
	c.settled()
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
