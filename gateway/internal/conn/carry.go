package conn

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
)

// readBudget is the number of reads one flow may do in a turn before other flows get their
// share.
const readBudget = 4

// carry is the pump of a flow with a link: it moves bytes between the app leg and the link's
// endpoint. Only the thread of its shard touches it.
//
//	tx  read app leg ─► peer's RMB ─► (app's FIN) END on the wire leg ─► HAVE{final} from the peer
//	rx  RMB ─► write app leg ─► (END reached) shutdown app leg ─► HAVE{final} to the peer
//
// END on the wire leg defines the end of a direction; an rsocket SHUTDOWN is only a hint
// (docs/PROTOCOL.md "Records").
type carry struct {
	*carrier.Link
	f  *Flow
	fd int // the app leg; -1 until start

	legEdges
	report func(rsocket.Events) // events for the negotiation; nil from start on
	queued bool                 // on the shard's again list
	faulty bool                 // fault injection is on

	lastBytes lastBytes // whether the app's reset waits for its last bytes

	failure    error      // the error that broke the queue pair
	unanswered bool       // failure means that the peer was silent
	patience   loop.Timer // runs the core's Patience

	stall *life.StallWatch // nil: no stall suspected
}

var _ carrier.User = (*carry)(nil)

var _ carrier.WireLeg = (*carry)(nil) // a link asserts this interface on its user

// newCarry returns a carry for a link that is about to be made.
func (f *Flow) newCarry() *carry {
	c := &carry{f: f, fd: -1}
	c.patience = loop.NewTimer(func() {
		c.Shard.WorksFor(f)
		f.do(f.core.Patience())
	})
	return c
}

func (c *carry) Completed(ev rsocket.Events, ok bool) {
	switch {
	case !c.Carries():
		if c.report != nil && ev != 0 {
			c.report(ev)
		}
	case !ok:
		c.broken()
	default:
		c.later() // later in this turn, after its other completions, to write what they brought in one piece
	}
}

func (c *carry) Broken() { c.broken() }

func (c *carry) Violated() { c.f.abort(negotiate.ReasonProtocolError, false) }

// Ending implements carrier.WireLeg. Once the flow is closing, the client's kernel may answer
// for the tuple from TIME_WAIT, which says nothing about its gateway.
func (c *carry) Ending() bool { return c.f.state() > life.Carrying }

func (c *carry) KeepAlive(every time.Duration, probes int) {
	_ = c.f.wire.SetKeepalive(every, every, probes)
}

func (c *carry) Ask() { c.f.post(c.f.ask) }

// start lets bytes flow between fd and the queue pair. The carry uses fd from here on.
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
	if c.EP.Err() != nil { // only now, so that the relay takes over a leg that is already watched
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
		// Nothing more can be read, or the peer has no room for it now: a reset does not wait
		// for room, just as natively it does not wait for a receiver's full buffer.
		c.f.abort(negotiate.ReasonAppReset, false)
		return
	}
	c.settle()
}

// pumpTx reads from the application straight into the memory granted by the peer.
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
		c.f.sent(n) // count them before the peer can have them
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

// resetPatience is how long an application's reset may wait for its last bytes on a lossy
// network, or on the wire leg.
const resetPatience = 300 * time.Millisecond

// lastBytes says whether an application's reset waits for the bytes sent before it.
//
//	notAwaited ── the reset is read ──► awaited ── resetPatience ──► givenUp
type lastBytes uint8

const (
	notAwaited lastBytes = iota
	awaited
	givenUp
)

// giveUpLater ends the wait, on a shard of the flow, and then calls then.
func (l *lastBytes) giveUpLater(s *loop.Shard, f *Flow, then func()) {
	s.After(resetPatience, func() {
		s.WorksFor(f)
		*l = givenUp
		then()
	})
}

// placed reports whether the bytes sent before a reset are in the peer's memory. The reset
// travels on the wire leg and would overtake bytes that have to be retransmitted. Natively,
// an answer that precedes a close with unread bytes usually arrives.
func (c *carry) placed() bool {
	if !c.Lossy || c.lastBytes == givenUp || c.EP.Placed() {
		return true
	}
	if c.lastBytes == notAwaited {
		c.lastBytes = awaited
		if c.EP.Keepalive() != nil { // it completes after everything sent before it
			return true
		}
		c.lastBytes.giveUpLater(c.Shard, c.f, c.pump)
	}
	return false
}

// endTx announces the end of the application's bytes.
func (c *carry) endTx() {
	if c.EP.Shutdown() != nil { // SHUTDOWN is a hint; END counts, and covers only bytes that got through
		c.f.core.LegEndsUnsaid(c.EP.SentOffset())
		c.broken()
		return
	}
	c.f.do(c.f.core.LegEnds(c.EP.SentOffset()))
	if c.failed {
		c.f.ctl.flush() // before ABORT
	}
	c.f.rouse()
}

// blocked handles an endpoint without room to write. The endpoint reports when there is room
// again, unless there never will be: it is broken, or the peer has closed a direction that
// only this side may end.
func (c *carry) blocked() {
	switch {
	case c.EP.Err() != nil:
		c.broken()
	case c.EP.Blocked() == rsocket.BlockedClosed:
		c.f.abort(negotiate.ReasonProtocolError, false)
	}
}

// endRx shuts down the application's receive direction once every byte before END has been
// written to it.
func (c *carry) endRx() {
	b := &c.f.core.Ledger
	if b.Rx != life.RxKnown || c.EP.ConsumedOffset() != b.Final {
		return
	}
	_ = unix.Shutdown(c.fd, unix.SHUT_WR)
	c.f.do(c.f.core.LegShut())
}

// wireLost handles the peer leaving the wire leg and returns how many bytes were received.
// After END in both directions the peer leaves only once all its bytes are here, so the count
// is final.
func (c *carry) wireLost(silent bool) (received uint64) {
	if !c.f.core.BothEnd() {
		c.WireLost(silent)
	} else if !c.Closed() {
		c.Shard.Collect()
	}
	return c.EP.ReceivedOffset()
}

// later queues the flow for the end of the shard's turn.
func (c *carry) later() {
	if !c.queued {
		c.queued = true
		c.Shard.Later(c)
	}
}

// settle checks, after both directions have ended, whether the app leg's kernel has delivered
// everything. Until then the steering of the app leg must stay.
func (c *carry) settle() {
	b := &c.f.core.Ledger
	if b.Tx == life.TxOpen || b.Rx < life.RxShut || b.LegDone || c.Closed() || !legDelivered(c.fd) {
		return
	}
	c.Shard.Leave(c.fd)
	c.f.do(c.f.core.LegDelivered())
}

// lastWords gives the application what arrived before the flow was aborted, and the end if
// that arrived: natively, too, the answer of a server that resets because it closes with unread
// bytes is delivered. What the application's kernel does not take at once is lost.
func (c *carry) lastWords() {
	c.Shard.WorksFor(c.f)
	if !c.Carries() || c.Halfway || c.f.core.LegDone || c.failed {
		return
	}
	c.Shard.Collect()
	for {
		span := c.EP.ReadSpan()
		if len(span) == 0 {
			if b := &c.f.core.Ledger; b.Rx == life.RxKnown && c.EP.ConsumedOffset() == b.Final {
				_ = unix.Shutdown(c.fd, unix.SHUT_WR)
			}
			return
		}
		n, errno := loop.RawSend(c.fd, span)
		if errno != 0 || c.EP.Consume(n) != nil {
			return
		}
		c.f.rx.Add(uint64(n))
	}
}

// close closes the link. The appLeg keeps the app leg's descriptor.
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

// Event implements loop.Member. It receives edges of the app leg.
func (c *carry) Event(edges uint32) {
	c.take(edges)
	c.pump()
}

// Service implements loop.Servicer. It resumes the pump after the turn's budget was used up.
func (c *carry) Service() {
	c.queued = false
	c.pump()
}

// bulkTurn is the position of a bulk pump in its shard's bulk list.
//
//	idle ◄── step ── queued        any ── a step has panicked ──► stopped
//	  └── later ──────►
type bulkTurn uint8

const (
	bulkIdle bulkTurn = iota
	bulkQueued
	bulkStopped
)

// bulk is the common part of relay and rawRelay, the pumps between an app leg and the wire
// leg, which move bytes in steps of the shard's bulk list.
type bulk struct {
	f  *Flow
	s  *loop.Shard
	fd int // the app leg; -1 until there is one
	legEdges

	pump loop.BulkMember // the pump that embeds this
	turn bulkTurn

	lastBytes lastBytes // whether the app's reset waits for its last bytes
}

func newBulk(f *Flow, pump loop.BulkMember) bulk { return bulk{f: f, s: f.Shard, fd: -1, pump: pump} }

// later puts the pump on the bulk list unless it is there already.
func (b *bulk) later() {
	if b.turn == bulkIdle {
		b.turn = bulkQueued
		b.s.LaterBulk(b.pump)
	}
}

// placed reports whether the application's reset may leave, as carry.placed does: the wire leg
// drops what it has not sent yet. arrived says that the peer's TCP has all bytes.
func (b *bulk) placed(arrived bool) bool {
	if arrived || b.lastBytes == givenUp {
		return true
	}
	if b.lastBytes == notAwaited {
		b.lastBytes = awaited
		b.lastBytes.giveUpLater(b.s, b.f, b.later)
	}
	b.f.wire.Ask(func() { b.f.post(b.later) })
	return false
}

// begins marks the start of a step. It returns false if the pump has been stopped.
func (b *bulk) begins() bool {
	if b.turn == bulkStopped {
		return false
	}
	b.turn = bulkIdle
	return true
}

// Owner implements loop.Member.
func (b *bulk) Owner() loop.Owner { return b.f }

// Event implements loop.Member.
func (b *bulk) Event(edges uint32) {
	b.take(edges)
	b.later()
}

// Stop implements loop.BulkMember.
func (b *bulk) Stop() { b.turn = bulkStopped }

// ringUse is the fill of a connection's rings at the last look for stalls, which runs on the
// shard anyway, so that a scrape need not ask a shard. The zero value means that the
// connection has not been looked at yet.
type ringUse struct{ size, waiting, unacknowledged atomic.Uint64 }

// note is called on the shard. While one ring replaces another, both hold bytes: more may be
// waiting than the new one has room for, so the recorded size is at least the bytes waiting.
func (r *ringUse) note(size int, waiting, unacknowledged uint64) {
	r.size.Store(max(uint64(size), waiting))
	r.waiting.Store(waiting)
	r.unacknowledged.Store(unacknowledged)
}

func (r *ringUse) use() report.RingUse {
	return report.RingUse{Size: r.size.Load(), Waiting: r.waiting.Load(), Unacknowledged: r.unacknowledged.Load()}
}

// broken handles an error of the queue pair or of the peer's protocol. If the peer is alive,
// the flow continues over the relay; the core first lets the peer say why.
func (c *carry) broken() {
	if c.Closed() || !c.f.core.MindsLink(c.EP.ReceivedOffset()) {
		return
	}
	err := c.EP.Err()
	if err == nil {
		err = rsocket.ErrConnection // the stream ended with bytes still in flight
	}
	c.failure = err
	reason := c.Reason(err)
	c.unanswered = reason == negotiate.ReasonCarrierUnreachable
	c.f.do(c.f.core.LinkFails(reason, c.Survives(err)))
}

// drain takes what the link still holds before the flow leaves it because of cause. It gives
// the application as much of what has arrived as it takes now; the peer retransmits the rest.
func (c *carry) drain(cause string) {
	if c.Closed() || c.Halfway {
		return
	}
	c.Shard.Collect()
	if !c.f.core.Ended() && !c.f.core.LegDone {
		c.pumpRx()
	}
	c.f.do(c.f.core.LinkDrained(life.Drained{
		Cause: cause, Sent: c.EP.SentOffset(), Freed: c.EP.FreedOffset(), Consumed: c.EP.ConsumedOffset(),
		Convicted: cause == report.DemotedByPeer && c.Convicted(), Reset: c.failed,
	}))
}

// linkPatience is a lower bound on how long a link waits for its peer before it fails. If
// this gateway was late within that time, the peer may have answered.
const linkPatience = 5 * time.Second

// leave hands the flow over to the relay. Bytes carried so far stay counted for the old
// carrier.
func (c *carry) leave(cause string) {
	f := c.f
	from := f.view().carrier
	f.relay, f.carries = newRelay(f, f.ctl), nil
	f.env.Counters.demoted(f, from, cause)
	f.tell(report.EventDemoted)
	c.Shard.SetTimer(&c.patience, time.Time{})
	sent, written := c.Depart()
	f.relay.resume(c, &origin{tail: c.EP.Tail, sent: sync.OnceFunc(sent), written: written})
	f.env.Lines.Demoted(f.Info(time.Now()), from, cause, c.failure)
	if now := time.Now(); c.failure != nil && (!c.unanswered || !f.env.Pulse.WasLate(now.Add(-linkPatience), now, linkPatience)) {
		f.env.Peers.Failed(f.Peer(), c.Kind, now)
	}
}
