package conn

import (
	"errors"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// wireControl handles the records on the wire leg of a carried flow, whatever moves the
// bytes. It is the only code that reads and writes records; the core decides what they mean.
// It belongs to the flow's shard. The wire's notifications only post.
//
// While a queue pair carries, records are a few bytes per direction over the life of the
// flow, and are handled as they come. With a relay they wait for its step.
type wireControl struct {
	f *Flow
	s *loop.Shard

	posted atomic.Bool // a look at the wire leg is on its way to the shard
	look   func()      // noticed, bound once

	reader negotiate.RecordReader
	out    backlog  // records not yet taken by the wire leg
	hears  bool     // there may be something to read
	record [64]byte // scratch space for the record being sent
	cut    bool     // the wire leg takes no more; what can still be read from it counts

	timer loop.Timer // the core's linger
}

// controlReads bounds the reads of one look.
const controlReads = 16

func newWireControl(f *Flow) *wireControl {
	c := &wireControl{f: f, s: f.Shard}
	c.look, c.timer = c.noticed, loop.NewTimer(c.expired)
	return c
}

// relayed reports whether the wire leg carries the bytes as well.
func (c *wireControl) relayed() bool { return c.f.core.By() == life.ByRelay }

// begin starts exchanging records; rest holds the first bytes of them.
func (c *wireControl) begin(leg *appLeg, rest []byte) {
	if !c.f.core.Talk() {
		return
	}
	if c.relayed() {
		fd, err := leg.take()
		if err != nil { // the flow has ended
			return
		}
		c.f.relay.start(fd, rest)
	} else {
		c.feed(rest)
	}
	c.f.do(c.f.core.Talked())
	c.f.wire.SetNotify(c.notify) // which notifies at once
}

// notify asks the shard to look at the wire leg. It never blocks.
func (c *wireControl) notify() {
	if c.posted.CompareAndSwap(false, true) {
		c.s.Post(c.look)
	}
}

func (c *wireControl) noticed() {
	c.s.WorksFor(c.f)
	c.posted.Store(false) // before the reads: whatever comes after them posts another look
	c.hears = true
	if c.relayed() {
		c.f.relay.later()
	} else {
		c.service()
	}
}

// talks reports whether records are exchanged.
func (c *wireControl) talks() bool { return c.f.core.Talks() }

// service writes what is pending and reads what has come, for a flow with a queue pair.
func (c *wireControl) service() {
	if c.f.core.Silent() {
		return
	}
	c.pay()
	for reads := 0; c.hears && c.talks() && !c.relayed() && !c.f.core.Gone(); reads++ {
		if reads == controlReads {
			c.notify()
			return
		}
		c.read(c.s.Scratch())
	}
	if !c.relayed() {
		c.settle()
	}
}

// pay sends HAVE{final} if it is due, and whatever else is pending.
func (c *wireControl) pay() {
	c.f.do(c.f.core.Pay())
	c.flush()
}

// settle ends the flow when nothing is left to do on it.
func (c *wireControl) settle() { c.f.do(c.f.core.Settle(c.out.len() > 0)) }

// expired is called when the core's linger is over.
func (c *wireControl) expired() {
	c.s.WorksFor(c.f)
	c.f.do(c.f.core.Linger(c.out.len() > 0))
}

// read reads the wire leg once, into buf, and acts on the result.
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

// lost handles the end of the wire leg: FIN, RST, or a timeout of TCP.
func (c *wireControl) lost(err error) {
	c.out = backlog{}
	received := uint64(0)
	if !c.relayed() {
		received = c.f.picked.wireLost(errors.Is(err, syscall.ETIMEDOUT))
	}
	c.f.do(c.f.core.WireEnded(received))
}

// feed cuts b into records and acts on each.
func (c *wireControl) feed(b []byte) {
	for c.talks() {
		rec, n, err := c.reader.Next(b)
		if err != nil {
			c.f.abort(negotiate.ReasonProtocolError, false)
			return
		}
		b = b[n:]
		if rec.Type == 0 {
			return
		}
		c.act(rec)
	}
}

func (c *wireControl) act(rec negotiate.Record) {
	received := uint64(0)
	if !c.relayed() {
		received = c.f.picked.EP.ReceivedOffset()
		if rec.Type == negotiate.RecordEnd {
			c.f.step(faults.Closing)
		}
	}
	c.f.do(c.f.core.Record(rec, received))
	if rec.Type == negotiate.RecordData && c.talks() {
		c.f.relay.deliver(rec.Payload)
	}
}

// queue appends a record to those waiting.
func (c *wireControl) queue(rec negotiate.Record) {
	switch rec.Type {
	case negotiate.RecordEnd:
		c.put(negotiate.AppendEnd(c.record[:0], rec.Offset))
	case negotiate.RecordHave:
		c.put(negotiate.AppendHave(c.record[:0], rec.Offset, rec.Window))
	case negotiate.RecordDemote:
		c.put(negotiate.AppendDemote(c.record[:0]))
	case negotiate.RecordKeepalive:
		c.put(negotiate.AppendKeepalive(c.record[:0]))
	case negotiate.RecordData, negotiate.RecordDemoteDone, negotiate.RecordAbort: // sent by the relay and by close
	}
}

func (c *wireControl) put(b []byte) {
	if !c.cut && !c.f.core.Gone() && !c.f.core.Silent() {
		c.out.put(b)
	}
}

// send writes a record to the wire leg, after those already waiting.
func (c *wireControl) send(b []byte) {
	if c.out.len() == 0 {
		b = b[c.push(b):]
	}
	if len(b) > 0 {
		c.put(b)
	}
}

// flush writes pending records to the wire leg. What it does not take waits for its
// notification.
func (c *wireControl) flush() {
	if c.out.len() > 0 {
		if n := c.push(c.out.bytes()); !c.cut {
			c.out.drop(n)
		}
	}
}

// push writes as much as the wire leg takes. If writing fails, the wire leg is read to its
// end, which shows whether that end is in order.
func (c *wireControl) push(b []byte) (done int) {
	if c.cut || c.f.core.Gone() || c.f.core.Silent() {
		return 0
	}
	c.cut = true // stays set after a panic: a record may have been written in part
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

// close ends the control of a flow that has ended. If why is set, the peer is told the
// reason, unless records are still waiting: then the reset alone must do.
func (c *wireControl) close(why negotiate.Reason) {
	c.s.SetTimer(&c.timer, time.Time{})
	if why != negotiate.ReasonNone && c.out.len() == 0 && !c.cut && !c.f.core.Gone() {
		_, _ = c.f.wire.Write(negotiate.AppendAbort(c.record[:0], why))
	}
	c.out = backlog{}
}

// wireLeg is what a flow needs from its connection to the peer gateway; *netstack.Conn
// implements it.
type wireLeg interface {
	Read(p []byte) (int, error)
	Write(p []byte) (int, error)
	SetNotify(fn func())
	SetKeepalive(idle, interval time.Duration, count int) error
	SetUserTimeout(d time.Duration) error
	Vitals() (written, heard uint64)
	Acknowledged(written uint64) bool
	Ask(heard func())
	Over() bool
	MarkCarrying()
	QuickACK()
	CloseWrite() error
	Close() error
	Abort()
	Forget()
}

// legAsk is how often a leg that carries bytes sends a keepalive probe, so that a peer
// gateway that has died is noticed by the reset of its kernel. The leg waits
// carrier.LegPatience for an answer.
const legAsk = 2 * time.Second

// askLeg starts the probes.
func askLeg(wire wireLeg) { _ = wire.SetKeepalive(legAsk, legAsk, int(carrier.LegPatience/legAsk)) }

var _ wireLeg = (*netstack.Conn)(nil)
