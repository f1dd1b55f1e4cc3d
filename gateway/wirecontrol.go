package gateway

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// wireControl is the wire leg of a flow with an rdma carrier: records only,
// a few bytes per direction and life. The wire's notifications and the shard's
// orders queue it on the shard of the flow; no goroutine waits per flow. What
// sends and reads runs there, and so does begin.
//
// It knows when the flow is over: END and HAVE{final} both ways, and nothing
// left in the app leg's kernel (docs/PROTOCOL.md "Teardown").
type wireControl struct {
	f      *flow
	s      *loop.Shard
	queued atomic.Bool
	look   func() // service: made once

	mu      sync.Mutex // guards everything below
	out     []byte     // records not yet taken by the wire leg
	reader  negotiate.RecordReader
	reading bool     // CONFIRM has passed: what comes now are records
	over    bool     // the flow has ended, or the wire leg is the relay's
	wanted  string   // the queue pair is to be left as soon as records are read, and why
	left    bool     // DEMOTE was read
	rest    []byte   // behind it: the relay's
	then    []func() // decided under mu, done by unlock

	endSent, endGot   bool
	haveSent, haveGot bool
	final             uint64 // of the own direction, when endSent
	legDone, wireGone bool
	gone              bool // the wire leg is the relay's

	owed      bool   // HAVE is not yet among out
	received  uint64 // of the peer's direction, when haveSent
	timer     *time.Timer
	lingering bool // what timer is for
	asked     bool // for the client's reset
}

// serverLinger is how long a server waits for the client to reset the wire leg
// after both directions have ended.
const serverLinger = 5 * time.Second

func newWireControl(f *flow, s *loop.Shard) *wireControl {
	c := &wireControl{f: f, s: s}
	c.look = c.service
	return c
}

// begin starts to read records; rest are the first bytes of them.
func (c *wireControl) begin(rest []byte) {
	c.first(rest)
	c.f.wire.SetNotify(c.enqueue) // which it does at once
}

func (c *wireControl) first(rest []byte) {
	c.mu.Lock()
	defer c.unlock()
	c.reading = true
	c.parse(rest)
	if cause := c.wanted; cause != "" && !c.left && !c.over {
		c.then = append(c.then, func() { c.f.chosen().demote(cause) })
	}
}

// unlock gives mu back and then does what was decided under it: that comes back
// to sendHave and stop, and to other locks.
func (c *wireControl) unlock() {
	then := c.then
	c.then = nil
	c.mu.Unlock()
	for _, fn := range then {
		fn()
	}
}

// enqueue asks the shard to look at the wire leg. It never blocks.
func (c *wireControl) enqueue() {
	if c.queued.CompareAndSwap(false, true) {
		c.s.Post(c.look)
	}
}

// sendEnd says that the own direction is final bytes long.
func (c *wireControl) sendEnd(final uint64) {
	c.mu.Lock()
	c.endSent, c.final = true, final
	c.out = negotiate.AppendEnd(c.out, final)
	c.mu.Unlock()
	c.f.to(StateClosing)
	c.enqueue()
}

// sendHave says that the application has got all of the peer's direction.
func (c *wireControl) sendHave(final uint64) {
	c.mu.Lock()
	c.haveSent, c.owed, c.received = true, true, final
	c.mu.Unlock()
	c.enqueue()
}

// legDelivered says that the kernel of the application has everything.
func (c *wireControl) legDelivered() {
	c.mu.Lock()
	c.legDone = true
	c.mu.Unlock()
	c.enqueue()
}

// keepalive asks the peer's TCP for a sign of life, unless something it has to
// acknowledge is on its way.
func (c *wireControl) keepalive() {
	c.mu.Lock()
	if c.reading && !c.over && !c.wireGone && len(c.out) == 0 {
		c.out = negotiate.AppendKeepalive(c.out)
	}
	c.mu.Unlock()
	c.enqueue()
}

// delivered: the peer has said that its application has got everything.
func (c *wireControl) delivered() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.haveGot
}

// service writes what is to be written and reads what is there.
func (c *wireControl) service() {
	c.s.WorksFor(c.f)
	scratch := c.s.Scratch()
	c.queued.Store(false)
	c.mu.Lock()
	defer c.unlock()
	if c.over {
		return
	}
	c.payHave()
	c.flush()
	for c.reading && !c.left && !c.wireGone && !c.over {
		n, err := c.f.wire.Read(scratch)
		if errors.Is(err, netstack.ErrWouldBlock) {
			break
		}
		if err != nil {
			c.lost(err)
			break
		}
		c.parse(scratch[:n])
	}
	c.finish()
}

// payHave sends HAVE, behind the own END: the peer can do nothing with it before
// that, and a program that answers the end of a connection with its own makes both
// one segment. A client that resets the wire leg now has no need to say it
// (docs/PROTOCOL.md "Teardown").
func (c *wireControl) payHave() {
	if c.owed && c.endSent && (c.f.side != config.SideClient || !c.allDone()) {
		c.owed = false
		c.out = negotiate.AppendHave(c.out, c.received, 0)
	}
}

// allDone: both directions have ended and both applications have everything.
func (c *wireControl) allDone() bool {
	return c.endSent && c.endGot && c.haveSent && c.haveGot && c.legDone
}

// flush gives the wire leg what it takes; the rest waits for its notification.
func (c *wireControl) flush() {
	for len(c.out) > 0 && !c.wireGone {
		n, err := c.f.wire.Write(c.out)
		if errors.Is(err, netstack.ErrWouldBlock) {
			return
		}
		if err != nil {
			c.lost(err)
			return
		}
		c.out = c.out[n:]
	}
}

// lost is the end of the wire leg: FIN, RST, or a silence TCP has waited out.
// Before END from both sides it is an abort; after, the client has done its part,
// if its bytes are here.
func (c *wireControl) lost(err error) {
	c.wireGone, c.out = true, nil
	if !c.endSent || !c.endGot {
		if cr := c.f.chosen(); cr != nil {
			cr.fabric.wireLost(cr, errors.Is(err, syscall.ETIMEDOUT))
		}
		c.abort(negotiate.ReasonWireReset, true)
		return
	}
	c.haveGot = true
	if !c.haveSent {
		c.then = append(c.then, c.f.chosen().wireLost)
	}
}

func (c *wireControl) abort(r negotiate.Reason, remote bool) {
	c.over = true
	c.then = append(c.then, func() { c.f.abort(r, remote) })
}

// stop ends the control of a flow that has ended. With a reason the peer is
// told; behind records that the wire leg has not taken the reset alone must do.
func (c *wireControl) stop(r negotiate.Reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.timer != nil {
		c.timer.Stop()
	}
	if r != negotiate.ReasonNone && !c.wireGone && !c.gone && len(c.out) == 0 {
		_, _ = c.f.wire.Write(negotiate.AppendAbort(nil, r))
	}
}

// parse cuts b into records and acts on each.
func (c *wireControl) parse(b []byte) {
	for !c.over && !c.left {
		rec, n, err := c.reader.Next(b)
		if err != nil {
			c.abort(negotiate.ReasonProtocolError, false)
			return
		}
		b = b[n:]
		if rec.Type == 0 {
			return
		}
		if rec.Type == negotiate.RecordDemote {
			c.leaving(b)
			return
		}
		c.record(rec)
	}
}

// leaving is DEMOTE, with what came behind it: the relay will look at that.
func (c *wireControl) leaving(rest []byte) {
	c.left, c.rest = true, append([]byte(nil), rest...)
	c.then = append(c.then, func() { c.f.chosen().demote(DemotedByPeer) })
}

// mayLeave reports whether the wire leg holds records by now. If not, begin will
// have the flow leave its queue pair.
func (c *wireControl) mayLeave(cause string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reading {
		c.wanted = cause
	}
	return c.reading && !c.over
}

// leave gives the wire leg to a relay: nothing is read or written here any more.
func (c *wireControl) leave(d *departure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over, c.gone = true, true
	if c.timer != nil {
		c.timer.Stop()
	}
	d.reader, d.rest, d.first = c.reader, c.rest, c.out
	c.out, c.rest = nil, nil
	d.books.taken = c.haveGot
	if c.left {
		d.books.peer = peerLeft
	}
}

func (c *wireControl) record(rec negotiate.Record) {
	switch rec.Type {
	case negotiate.RecordEnd:
		c.f.step(faults.Closing)
		c.endGot = true
		c.f.to(StateClosing)
		final := rec.Offset
		cr := c.f.chosen()
		c.then = append(c.then, func() { cr.peerEnd(final) })
	case negotiate.RecordHave:
		if c.endSent && rec.Offset == c.final {
			c.haveGot = true
		} else if c.endSent && rec.Offset > c.final {
			c.abort(negotiate.ReasonProtocolError, false)
		}
	case negotiate.RecordAbort:
		c.abort(rec.Reason, true)
	case negotiate.RecordKeepalive:
	case negotiate.RecordDemote: // see leaving
	case negotiate.RecordData, negotiate.RecordDemoteDone:
		c.abort(negotiate.ReasonProtocolError, false)
	}
}

// finish ends the flow when nothing is left to do on it: the client resets the
// wire leg, the server waits for that reset, but not for ever.
func (c *wireControl) finish() {
	unsent := len(c.out) > 0 && !c.wireGone
	switch {
	case c.over || unsent:
	case c.allDone() && (c.f.side == config.SideClient || c.wireGone):
		c.over = true
		c.then = append(c.then, c.f.complete)
	case c.f.side == config.SideServer && c.allDone():
		c.after(true, func() {
			c.mu.Lock()
			c.wireGone = true
			c.mu.Unlock()
			c.enqueue()
		})
	case c.f.side == config.SideServer && c.endSent && c.endGot && c.legDone:
		// The client says by its reset alone that it has everything. If that is
		// lost, what it answers when it is asked is another.
		c.after(false, c.askForReset)
	}
}

// resetMissed is when a server begins to ask for a reset that does not come: while
// the client's gateway still remembers the tuple, which is serverLinger. Later the
// client's kernel has to answer, and does not before its own TIME_WAIT is over.
const resetMissed = time.Second

// askForReset asks by TCP, whose probes a gateway that has ended the flow answers by
// the reset that was lost, and by a record later.
func (c *wireControl) askForReset() {
	c.mu.Lock()
	c.timer = nil
	first := !c.asked && !c.over
	c.asked = true
	c.mu.Unlock()
	if first {
		_ = c.f.wire.SetKeepalive(resetMissed, resetMissed, math.MaxInt32)
		c.enqueue() // to wait again
		return
	}
	c.keepalive()
}

// after has fn called when serverLinger has passed, or resetMissed where nobody was
// asked yet, unless something is waited for already.
func (c *wireControl) after(lingering bool, fn func()) {
	if c.timer != nil && c.lingering == lingering {
		return
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	c.lingering = lingering
	pause := serverLinger
	if !lingering && !c.asked {
		pause = resetMissed
	}
	c.timer = time.AfterFunc(pause, fn)
}
