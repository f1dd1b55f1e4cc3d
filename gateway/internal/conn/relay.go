package conn

import (
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/negotiate"
)

// relayChunk is the largest DATA record that this side sends.
const relayChunk = loop.BulkTurn

// relay carries a flow in DATA records on the wire leg, when no queue pair works or the one in
// use has failed. It is a pump of the flow's shard.
//
//	tx  read app leg ─► one DATA record ─► wire leg; while that waits nothing is read
//	rx  read wire leg ─► records ─► app leg, or the ring, which the window bounds
//
// The wire leg is read no matter what the application does, so that HAVE, END and KEEPALIVE
// never queue behind it (docs/PROTOCOL.md "Records").
type relay struct {
	bulk
	ctl  *wireControl
	from *origin // nil: the flow was never on a queue pair

	rest  []byte  // read from the wire leg before the relay began
	ring  backlog // bytes that the application has not taken yet
	left  bool    // the tail was sent and DEMOTE-DONE is out, or there was no queue pair
	data  uint64  // count of bytes written to the wire leg that includes the application's last bytes, or their end
	stall life.StallWatch
}

// origin is what remains of the queue pair of a flow that continues over the relay.
type origin struct {
	tail    func(offset uint64) []byte // returns sent bytes that the peer may need again
	sent    func()                     // the tail is no longer needed; called once or more
	written func()                     // the peer has left its queue pair for ever; called once or more
}

func newRelay(f *Flow, ctl *wireControl) *relay {
	r := &relay{ctl: ctl, left: true}
	r.bulk = newBulk(f, r)
	return r
}

// start starts the relay; rest holds the first bytes of the peer's records.
func (r *relay) start(fd int, rest []byte) {
	if err := r.s.Join(r, fd); err != nil {
		r.f.abort(negotiate.ReasonDeviceFailed, false)
		return
	}
	r.fd, r.rest = fd, rest
	r.begin()
}

// resume continues where the queue pair left off. It takes over the app leg without losing an
// edge.
func (r *relay) resume(c *carry, from *origin) {
	r.fd, r.legEdges, r.from, r.left = c.fd, c.legEdges, from, false
	if !r.f.core.LegDone {
		r.s.Succeed(r, r.fd)
	}
	r.begin()
}

func (r *relay) begin() {
	r.readable, r.writable = true, true
	r.f.wire.QuickACK()
	askLeg(r.f.wire)
	_ = r.f.wire.SetUserTimeout(carrier.LegPatience) // the peer never closes its window
	r.later()
}

// Step implements loop.BulkMember.
func (r *relay) Step() (moved int) {
	if !r.begins() || r.fd < 0 || !r.ctl.talks() {
		return 0
	}
	if rest := r.rest; rest != nil {
		r.rest = nil
		r.ctl.feed(rest)
	}
	moved = r.fromWire() + r.toApp()
	r.ctl.flush()
	r.say()
	moved += r.fromApp()
	r.settle()
	return moved
}

// fromWire reads records, at most one chunk.
func (r *relay) fromWire() (n int) {
	buf := r.s.BulkBuffer(negotiate.DataHeaderLen + relayChunk)
	for r.ctl.hears && r.ctl.talks() && !r.f.core.Gone() {
		if n == relayChunk {
			r.later()
			break
		}
		n += r.ctl.read(buf[:relayChunk-n])
	}
	return n
}

// deliver passes bytes to the application, after those already waiting.
func (r *relay) deliver(b []byte) {
	if r.ring.len() == 0 {
		b = b[r.give(b):]
	}
	if len(b) > 0 {
		r.ring.put(b)
	}
}

// give writes as much to the application as it takes.
func (r *relay) give(b []byte) (n int) {
	for r.writable && !r.failed && n < len(b) {
		n += r.write(r.fd, b[n:])
	}
	r.f.rx.Add(uint64(n))
	r.f.core.Consume(n)
	return n
}

// toApp writes pending bytes to the application, at most one chunk.
func (r *relay) toApp() (moved int) {
	waits := r.ring.bytes()
	if !r.ctl.talks() || len(waits) == 0 {
		return 0
	}
	moved = r.give(waits[:min(len(waits), relayChunk)])
	if r.ring.drop(moved); r.writable && !r.failed && r.ring.len() > 0 {
		r.later()
	}
	return moved
}

// say tells the application that the peer's direction is over, and tells the peer how much
// the application has taken. The latter is sent before any more data: otherwise two sides
// that both send as fast as they can would each wait for HAVE.
func (r *relay) say() {
	b := &r.f.core.Ledger
	if !r.ctl.talks() || r.failed {
		return
	}
	if b.Rx <= life.RxKnown && b.Delivered() {
		_ = unix.Shutdown(r.fd, unix.SHUT_WR) // reading will show if the leg is gone
		r.f.do(r.f.core.LegShut())
	}
	switch {
	case b.Rx >= life.RxShut:
		r.ctl.pay()
	case b.Due() && r.ctl.out.len() == 0: // one at a time: a peer that reads none causes no more
		r.ctl.send(negotiate.AppendHave(r.ctl.record[:0], b.Report(), life.Window))
	}
}

// fromApp sends what the queue pair had sent but the peer has not received, then what the
// application writes, then END. It sends one record at a time and none while records wait.
func (r *relay) fromApp() (moved int) {
	b, ctl := &r.f.core.Ledger, r.ctl
	for ctl.talks() && ctl.out.len() == 0 && !ctl.cut && !r.f.core.Gone() {
		switch {
		case !r.left && b.Left():
			r.left = true
			r.from.sent()
			ctl.send(negotiate.AppendDemoteDone(r.ctl.record[:0])) // the peer's memory is no longer needed
		case b.Room() == 0, !b.Tail() && (b.Tx != life.TxOpen || !r.readable):
			return moved
		case moved == relayChunk:
			r.later()
			return moved
		case b.Tail():
			moved += r.resend(relayChunk - moved)
		default:
			moved += r.forward(relayChunk - moved)
		}
	}
	return moved
}

// resend sends at most most bytes of the tail.
func (r *relay) resend(most int) int {
	b := &r.f.core.Ledger
	buf := r.s.BulkBuffer(negotiate.DataHeaderLen + relayChunk)
	n := copy(buf[negotiate.DataHeaderLen:][:min(b.Room(), b.Read-b.Sent, uint64(most))], r.from.tail(b.Sent))
	if n == 0 { // the only copy is gone
		r.f.abort(negotiate.ReasonLostBytes, false)
		return 0
	}
	r.sendData(buf, n)
	return n
}

// forward sends at most most bytes that the application has written, or the end of its
// direction.
func (r *relay) forward(most int) int {
	b := &r.f.core.Ledger
	buf := r.s.BulkBuffer(negotiate.DataHeaderLen + relayChunk)
	n, got := r.read(r.fd, buf[negotiate.DataHeaderLen:][:min(b.Room(), uint64(most))], r.s.Now())
	if got != legNothing {
		r.f.step(faults.Relay)
	}
	switch got {
	case legBytes:
		r.f.sent(n)
		r.sendData(buf, n)
	case legEnd:
		r.f.do(r.f.core.LegEnds(b.Read))
		r.ctl.flush()
		r.said()
		r.f.rouse()
	case legReset:
		r.readable = false
	case legNothing:
	}
	return n
}

// sendData sends n bytes of payload, which are in buf behind the space for a header.
func (r *relay) sendData(buf []byte, n int) {
	negotiate.AppendDataHeader(buf[:0], r.f.core.Send(n), n)
	r.ctl.send(buf[:negotiate.DataHeaderLen+n])
	r.said()
}

// said records that the application's latest bytes were given to the wire leg.
func (r *relay) said() {
	written, _ := r.f.wire.Vitals()
	r.data = written + uint64(r.ctl.out.len())
}

// owes reports whether the peer gateway may lack bytes that were read from the application,
// or their end.
func (r *relay) owes() bool {
	b := &r.f.core.Ledger
	return b.Tail() || b.Peer != life.PeerRelays || !r.f.wire.Acknowledged(r.data)
}

// settle ends the flow when both directions are over and the application's kernel has
// delivered everything, which takes as long as the application takes to read. It also ends it
// when the application has reset its connection and nothing it sent before can be read now: a
// reset does not wait for a peer that takes nothing, just as natively it does not wait for a
// receiver's full buffer.
func (r *relay) settle() {
	if !r.ctl.talks() || r.turn == bulkQueued {
		return
	}
	if b := &r.f.core.Ledger; b.Tx == life.TxTaken && b.Rx >= life.RxShut && !b.LegDone && legDelivered(r.fd) {
		r.f.do(r.f.core.LegDelivered())
		r.s.Leave(r.fd)
	}
	if r.ctl.settle(); !r.f.core.Settled() && r.failed && r.placed(r.f.wire.Acknowledged(r.data)) {
		r.f.abort(negotiate.ReasonAppReset, false)
	}
}

// lastWords tells the application the end of the peer's direction, if it has all bytes before
// that, when the flow is aborted.
func (r *relay) lastWords() {
	if b := &r.f.core.Ledger; r.fd >= 0 && !r.failed && b.Rx == life.RxKnown && b.Delivered() {
		_ = unix.Shutdown(r.fd, unix.SHUT_WR)
	}
}

// close stops the relay of a flow that has ended and releases the tail. It must be called on
// the shard.
func (r *relay) close() {
	if r.fd >= 0 && !r.f.core.LegDone {
		r.s.Leave(r.fd)
	}
	r.fd, r.ring = -1, backlog{}
	if r.from != nil {
		r.from.sent()
		r.from.written()
	}
}
