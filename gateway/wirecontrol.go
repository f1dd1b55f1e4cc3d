package gateway

import (
	"errors"
	"math"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// wireControl is the wire leg of a carried flow: records, whatever moves the bytes.
// It is the one place that reads and writes them; where both directions stand is in
// the flow's ledger. It belongs to the shard of the flow. The wire's notifications only
// post, and so does keepalive; all else is for the shard's thread.
//
// While a queue pair carries, records are a few bytes per direction and life, and
// are looked at when they come. Those of a relay wait for its step.
//
//	waiting ── CONFIRM has passed ──► talking ── the flow ends ──► silent
type wireControl struct {
	f     *flow
	s     *loop.Shard
	carry *carry // nil: the flow has left it, or had none
	relay *relay // nil: a queue pair carries

	posted atomic.Bool // a look at the wire leg is on its way to the shard
	look   func()      // noticed: made once

	phase  controlPhase
	wanted string // the queue pair is to be left as soon as records are read, and why
	reader negotiate.RecordReader
	out    backlog  // records not yet taken by the wire leg
	hears  bool     // there may be something to be read
	record [64]byte // one that is about to be sent
	cut    bool     // the wire leg takes no more: what it says until its end counts
	gone   bool     // the wire leg has ended

	timer   loop.Timer
	waitFor outcome // what timer is for: asks or lingers
	asked   bool    // for the client's reset
}

// controlPhase is whether records are exchanged.
type controlPhase uint8

const (
	controlWaiting controlPhase = iota
	controlTalking
	controlSilent
)

const (
	// serverLinger is how long a server waits for the client to reset the wire leg
	// after both directions have ended.
	serverLinger = 5 * time.Second
	// resetMissed is when a server begins to ask for a reset that does not come: while
	// the client's gateway still remembers the tuple, which is serverLinger. Later the
	// client's kernel has to answer, and does not before its own TIME_WAIT is over.
	resetMissed = time.Second
	// controlReads bounds the reads of one look.
	controlReads = 16
)

func newWireControl(f *flow, s *loop.Shard) *wireControl {
	c := &wireControl{f: f, s: s}
	c.look, c.timer = c.noticed, loop.NewTimer(c.expired)
	return c
}

// begin starts to exchange records; rest are the first bytes of them.
func (c *wireControl) begin(leg *appLeg, rest []byte) {
	if c.phase != controlWaiting {
		return
	}
	c.phase = controlTalking
	if c.relay != nil {
		fd, err := leg.take()
		if err != nil { // the flow has ended
			return
		}
		c.relay.start(fd, rest)
	} else {
		c.feed(rest)
	}
	if c.wanted != "" && c.relay == nil && c.talks() {
		c.carry.demote(c.wanted)
	}
	c.f.wire.SetNotify(c.notify) // which it does at once
}

// notify asks the shard to look at the wire leg. It never blocks.
func (c *wireControl) notify() {
	if c.posted.CompareAndSwap(false, true) {
		c.s.Post(c.look)
	}
}

func (c *wireControl) noticed() {
	c.s.WorksFor(c.f)
	c.posted.Store(false) // before the reads: what comes behind them is another look's
	c.hears = true
	if c.relay != nil {
		c.relay.later()
	} else {
		c.service()
	}
}

// talks reports whether records are exchanged.
func (c *wireControl) talks() bool { return c.phase == controlTalking }

// client reports whether this is the client's side.
func (c *wireControl) client() bool { return c.f.side == config.SideClient }

// service writes what is to be written and reads what is there, for a flow with a
// queue pair.
func (c *wireControl) service() {
	if c.phase == controlSilent {
		return
	}
	c.pay()
	c.flush()
	for reads := 0; c.hears && c.talks() && c.relay == nil && !c.gone; reads++ {
		if reads == controlReads {
			c.notify()
			return
		}
		c.read(c.s.Scratch())
	}
	if c.relay == nil {
		c.settle()
	}
}

// pay sends HAVE{final}, if it is time for it.
func (c *wireControl) pay() {
	if c.f.books.tell(c.client()) {
		c.queue(negotiate.AppendHave(c.record[:0], c.f.books.final, 0))
	}
}

// read reads the wire leg once, into buf, and acts on what it says.
func (c *wireControl) read(buf []byte) (n int) {
	n, err := c.f.wire.Read(buf)
	switch {
	case errors.Is(err, netstack.ErrWouldBlock) && !c.cut:
		c.hears = false
	case err != nil:
		c.lost(err)
	default:
		c.feed(buf[:n])
	}
	return n
}

// feed cuts b into records and acts on each.
func (c *wireControl) feed(b []byte) {
	for c.talks() {
		rec, n, err := c.reader.Next(b)
		if err != nil {
			c.abort(negotiate.ReasonProtocolError, false)
			return
		}
		b = b[n:]
		if rec.Type == 0 {
			return
		}
		c.act(rec)
	}
}

// act acts on one record.
func (c *wireControl) act(rec negotiate.Record) {
	books := &c.f.books
	if c.relay == nil {
		books.received = c.carry.ep.ReceivedOffset()
	}
	if why := books.record(rec); why != negotiate.ReasonNone {
		c.abort(why, rec.Type == negotiate.RecordAbort)
		return
	}
	switch rec.Type {
	case negotiate.RecordData:
		c.relay.deliver(rec.Payload)
	case negotiate.RecordEnd:
		if c.relay == nil {
			c.carry.peerEnd()
		}
	case negotiate.RecordDemote:
		if c.relay == nil {
			c.carry.demote(DemotedByPeer)
		}
		if c.relay == nil { // it could not: the flow is ending
			c.phase = controlSilent
		}
	case negotiate.RecordDemoteDone:
		c.relay.from.written()
	case negotiate.RecordHave, negotiate.RecordAbort, negotiate.RecordKeepalive:
	}
}

// sendEnd says that the own direction is final bytes long. What follows from it in
// this turn goes with it.
func (c *wireControl) sendEnd(final uint64) {
	c.f.books.end(final)
	c.f.to(StateClosing)
	c.queue(negotiate.AppendEnd(c.record[:0], final))
	c.notify()
}

// shut says that the application has got all of the peer's direction.
func (c *wireControl) shut() {
	c.f.books.shut()
	c.notify()
}

// legDelivered says that the kernel of the application has everything.
func (c *wireControl) legDelivered() {
	c.f.books.legDone = true
	c.notify()
}

// keepalive asks the peer's TCP for a sign of life, unless something it has to
// acknowledge is on its way. It is safe for concurrent use.
func (c *wireControl) keepalive() {
	c.s.Post(func() {
		c.s.WorksFor(c.f)
		c.ask()
	})
}

func (c *wireControl) ask() {
	if c.talks() && c.relay == nil && !c.gone && c.out.len() == 0 {
		c.send(negotiate.AppendKeepalive(c.record[:0]))
	}
}

// queue puts a record behind those that wait.
func (c *wireControl) queue(b []byte) {
	if !c.cut && !c.gone && c.phase != controlSilent {
		c.out.put(b)
	}
}

// send gives a record to the wire leg, behind those that wait for it.
func (c *wireControl) send(b []byte) {
	if c.out.len() == 0 {
		b = b[c.push(b):]
	}
	if len(b) > 0 {
		c.queue(b)
	}
}

// flush gives the wire leg what waits for it; the rest waits for its notification.
func (c *wireControl) flush() {
	if c.out.len() > 0 {
		if n := c.push(c.out.bytes()); !c.cut {
			c.out.drop(n)
		}
	}
}

// push writes what the wire leg takes. One that takes no more is read to its end,
// which says whether that is an orderly one.
func (c *wireControl) push(b []byte) (done int) {
	if c.cut || c.gone || c.phase == controlSilent {
		return 0
	}
	c.cut = true // behind a panic: a record may have been taken in part
	for done < len(b) {
		n, err := c.f.wire.Write(b[done:])
		done += n
		if errors.Is(err, netstack.ErrWouldBlock) {
			break
		}
		if err != nil {
			c.out = backlog{}
			c.notify()
			return done
		}
	}
	c.cut = false
	return done
}

// lost is the end of the wire leg: FIN, RST, or a silence TCP has waited out.
// Before END from both sides it is an abort; after, the client has done its part,
// if its bytes are here.
func (c *wireControl) lost(err error) {
	c.gone, c.out = true, backlog{}
	books := &c.f.books
	if c.relay == nil {
		c.carry.wireLost(errors.Is(err, syscall.ETIMEDOUT))
	}
	if !books.lost() {
		c.abort(negotiate.ReasonWireReset, true)
	} else if c.relay == nil {
		c.carry.pump()
	}
}

func (c *wireControl) abort(r negotiate.Reason, remote bool) {
	c.phase = controlSilent
	c.f.abort(r, remote)
}

// settle ends the flow when nothing is left to do on it: the client resets the
// wire leg, the server waits for that reset, but not for ever. It reports whether
// the end is near.
func (c *wireControl) settle() bool {
	if c.phase == controlSilent || c.out.len() > 0 {
		return false
	}
	switch next := c.f.books.outcome(c.client(), c.gone); next {
	case isOver:
		c.complete()
		return true
	case lingers:
		c.await(lingers, serverLinger)
		return true
	case asks:
		pause := serverLinger
		if !c.asked {
			pause = resetMissed
		}
		c.await(asks, pause)
	case goesOn:
	}
	return false
}

func (c *wireControl) complete() {
	c.phase = controlSilent
	c.f.complete()
}

// await has expired called when a pause has passed, unless that is so already.
func (c *wireControl) await(what outcome, pause time.Duration) {
	if !c.timer.Pending() || c.waitFor != what {
		c.waitFor = what
		c.s.SetTimer(&c.timer, time.Now().Add(pause))
	}
}

// expired ends the flow of a client that does not leave the wire leg, or asks for its
// reset: by TCP first, whose probes a gateway that has ended the flow answers by the
// reset that was lost, and by a record later.
func (c *wireControl) expired() {
	c.s.WorksFor(c.f)
	switch {
	case c.phase == controlSilent:
		return
	case c.waitFor == lingers:
		c.complete()
		return
	case !c.asked:
		c.asked = true
		_ = c.f.wire.SetKeepalive(resetMissed, resetMissed, math.MaxInt32)
	default:
		c.ask()
	}
	c.settle() // to wait again
}

// mayLeave reports whether the wire leg holds records by now. If not, begin will
// have the flow leave its queue pair.
func (c *wireControl) mayLeave(cause string) bool {
	if c.phase == controlWaiting {
		c.wanted = cause
	}
	return c.talks()
}

// close ends the control of a flow that has ended. With a reason the peer is
// told; behind records that the wire leg has not taken the reset alone must do.
func (c *wireControl) close(why negotiate.Reason) {
	c.s.SetTimer(&c.timer, time.Time{})
	if why != negotiate.ReasonNone && c.out.len() == 0 && !c.cut && !c.gone {
		_, _ = c.f.wire.Write(negotiate.AppendAbort(c.record[:0], why))
	}
	c.phase, c.out = controlSilent, backlog{}
}
