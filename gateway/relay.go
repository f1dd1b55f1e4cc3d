package gateway

import (
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// relayChunk is the largest DATA record this side sends.
const relayChunk = 64 << 10

// relay carries a flow by DATA records over the wire leg: the refuge when no
// rdma carrier works, or works any more. It is a pump of the flow's shard.
//
//	tx  read app leg ─► one DATA record ─► wire leg; while that waits nothing is read
//	rx  read wire leg ─► records ─► app leg, or the ring, which the window bounds
//
// The wire leg is read whatever the application does, so HAVE, END and KEEPALIVE
// never queue behind it (docs/PROTOCOL.md "Records").
type relay struct {
	f    *flow
	s    *shard
	fd   int        // the app leg, -1 until start
	from *departure // nil: the flow began here
	legEdges

	books  ledger
	reader negotiate.RecordReader
	rest   []byte  // read from the wire leg before the relay began
	out    backlog // records that the wire leg has not taken
	ring   backlog // bytes that the application has not taken

	posted  atomic.Bool // the wire leg's notification is on its way to the shard
	look    func()      // noticed: made once
	queued  bool        // on the shard's bulk list
	hears   bool        // the wire leg may have something to be read
	started bool        // bytes may flow
	left    bool        // the tail has been sent: DEMOTE-DONE is out, or there was no queue pair
	legDone bool        // the app leg's kernel has nothing left to deliver
	cut     bool        // the wire leg takes no more
	gone    bool        // the wire leg has ended
	over    bool        // the flow is ending

	linger timer // of a server that waits for the client's reset
	stall  stallWatch
}

func newRelay(f *flow) *relay {
	r := &relay{f: f, s: f.g.shardFor(f), fd: -1, books: newLedger(), left: true}
	r.look, r.linger = r.noticed, newTimer(r.lingered)
	return r
}

// start begins to relay; rest are the first bytes of the peer's records.
func (r *relay) start(fd int, rest []byte) {
	if r.over {
		return
	}
	r.fd, r.readable, r.writable = fd, true, true
	if err := r.s.watch(r, fd); err != nil {
		r.abort(negotiate.ReasonDeviceFailed, false)
		return
	}
	r.begin(rest)
}

// resume goes on where a queue pair was left: with its app leg, of which no edge is
// lost, and with the records that say so, which leave at once if the wire leg takes
// them.
func (r *relay) resume(c *carry, d *departure) {
	r.fd, r.legEdges, r.legDone = c.fd, c.legEdges, c.legDone
	r.readable, r.writable = true, true
	if !r.legDone {
		r.s.fds[int32(r.fd)] = r
	}
	r.from, r.books, r.reader, r.left = d, d.books, d.reader, false
	r.send(d.first)
	r.begin(d.rest)
}

func (r *relay) begin(rest []byte) {
	r.started = true
	r.f.wire.QuickACK()
	askLeg(r.f.wire)
	_ = r.f.wire.SetUserTimeout(legPatience) // the peer never closes its window
	r.rest = rest
	r.f.wire.SetNotify(r.notify) // which it does at once
}

// notify asks the shard to look at the wire leg. It only posts.
func (r *relay) notify() {
	if r.posted.CompareAndSwap(false, true) {
		r.s.post(r.look)
	}
}

func (r *relay) noticed() {
	r.posted.Store(false) // before the reads: what comes behind them is another look's
	r.hears = true
	r.later()
}

// later puts the relay on the shard's bulk list.
func (r *relay) later() {
	if !r.queued {
		r.queued = true
		r.s.bulk.push(r)
	}
}

// owner implements pump.
func (r *relay) owner() *flow { return r.f }

// event implements pump.
func (r *relay) event(edges uint32) {
	r.take(edges)
	r.later()
}

// step implements bulkPump.
func (r *relay) step() (moved int) {
	r.queued = false
	if !r.started || r.over {
		return 0
	}
	if rest := r.rest; rest != nil {
		r.rest = nil
		r.parse(rest)
	}
	moved = r.fromWire() + r.toApp()
	r.flush()
	r.say()
	moved += r.fromApp()
	r.settle()
	return moved
}

// stop implements bulkPump.
func (r *relay) stop() { r.over = true }

// fromWire reads records, at most one chunk of them.
func (r *relay) fromWire() (n int) {
	buf := r.s.relayBuffer()
	for r.hears && !r.over && !r.gone {
		if n == relayChunk {
			r.later()
			return n
		}
		k, err := r.f.wire.Read(buf[:relayChunk-n])
		switch {
		case errors.Is(err, netstack.ErrWouldBlock) && !r.cut:
			r.hears = false
		case err != nil:
			r.lost()
		default:
			n += k
			r.parse(buf[:k])
		}
	}
	return n
}

// parse cuts b into records and acts on each.
func (r *relay) parse(b []byte) {
	for !r.over {
		rec, n, err := r.reader.Next(b)
		if err != nil {
			r.abort(negotiate.ReasonProtocolError, false)
			return
		}
		b = b[n:]
		if rec.Type == 0 {
			return
		}
		if why := r.books.record(rec); why != negotiate.ReasonNone {
			r.abort(why, rec.Type == negotiate.RecordAbort)
			return
		}
		switch rec.Type {
		case negotiate.RecordData:
			r.deliver(rec.Payload)
		case negotiate.RecordDemoteDone:
			r.from.written()
		}
	}
}

// deliver gives bytes to the application, behind those that wait for it.
func (r *relay) deliver(b []byte) {
	if r.ring.len() == 0 {
		b = b[r.give(b):]
	}
	if len(b) > 0 {
		r.ring.put(b)
	}
}

// give writes to the application what it takes.
func (r *relay) give(b []byte) (n int) {
	for r.writable && !r.failed && n < len(b) {
		n += r.write(r.fd, b[n:])
	}
	r.f.rx.Add(uint64(n))
	r.books.consume(n)
	return n
}

// toApp gives the application what waits for it, one chunk at most.
func (r *relay) toApp() (moved int) {
	waits := r.ring.bytes()
	if r.over || len(waits) == 0 {
		return 0
	}
	moved = r.give(waits[:min(len(waits), relayChunk)])
	if r.ring.drop(moved); r.writable && !r.failed && r.ring.len() > 0 {
		r.later()
	}
	return moved
}

// say tells the application that the peer's direction is over, and the peer what the
// application has taken: before more bytes go its way, or two that send as fast as
// they can would both wait for HAVE.
func (r *relay) say() {
	switch {
	case r.over || r.failed || r.books.told:
	case r.books.delivered():
		r.books.told = true
		_ = unix.Shutdown(r.fd, unix.SHUT_WR) // a leg that is gone is noticed when it is read
		r.f.to(StateClosing)
		r.send(negotiate.AppendHave(r.s.scratch[:0], r.books.final, 0))
	case r.books.due() && r.out.len() == 0: // one at a time: a peer that takes none makes none
		r.send(negotiate.AppendHave(r.s.scratch[:0], r.books.report(), relayWindow))
	}
}

// fromApp sends what the queue pair had sent and the peer has not got, then what
// the application writes, then END: one record of it, unless records wait.
func (r *relay) fromApp() (moved int) {
	b := &r.books
	for !r.over && r.out.len() == 0 && !r.cut && !r.gone {
		switch {
		case !r.left && b.left():
			r.left = true
			r.from.sent()
			r.send(negotiate.AppendDemoteDone(r.s.scratch[:0])) // the peer's memory is needed no more
		case b.room() == 0, b.ended && !b.tail(), !b.tail() && !r.readable:
			return moved
		case moved == relayChunk:
			r.later()
			return moved
		case b.tail():
			moved += r.resend(relayChunk - moved)
		default:
			moved += r.forward(relayChunk - moved)
		}
	}
	return moved
}

// resend sends at most so many bytes of the tail.
func (r *relay) resend(most int) int {
	b := &r.books
	buf := r.s.relayBuffer()
	n := copy(buf[negotiate.DataHeaderLen:][:min(b.room(), b.read-b.sent, uint64(most))], r.from.tail(b.sent))
	if n == 0 { // the only copy is gone
		r.abort(negotiate.ReasonLostBytes, false)
		return 0
	}
	r.sendData(buf, n)
	return n
}

// forward sends at most so many bytes that the application has written, or its end.
func (r *relay) forward(most int) int {
	buf := r.s.relayBuffer()
	n, got := r.read(r.fd, buf[negotiate.DataHeaderLen:][:min(r.books.room(), uint64(most))])
	if got != legNothing {
		r.f.step(stepRelay)
	}
	switch got {
	case legBytes:
		r.f.tx.Add(uint64(n))
		r.sendData(buf, n)
	case legEnd:
		r.books.ended = true
		r.f.to(StateClosing)
		r.send(negotiate.AppendEnd(r.s.scratch[:0], r.books.read))
	case legReset:
		r.readable = false
	case legNothing:
	}
	return n
}

// sendData sends n bytes of payload, which are in buf behind the room for a header.
func (r *relay) sendData(buf []byte, n int) {
	negotiate.AppendDataHeader(buf[:0], r.books.send(n), n)
	r.send(buf[:negotiate.DataHeaderLen+n])
}

// send gives a record to the wire leg, behind those that wait for it.
func (r *relay) send(b []byte) {
	if r.out.len() == 0 {
		b = b[r.push(b):]
	}
	if len(b) > 0 && !r.cut && !r.gone {
		r.out.put(b)
	}
}

// flush gives the wire leg what waits for it; the rest waits for its notification.
func (r *relay) flush() {
	if r.out.len() > 0 {
		if n := r.push(r.out.bytes()); !r.cut {
			r.out.drop(n)
		}
	}
}

// push writes what the wire leg takes. One that takes no more is read to its end,
// which says whether that is an orderly one.
func (r *relay) push(b []byte) (done int) {
	for done < len(b) && !r.cut && !r.gone {
		n, err := r.f.wire.Write(b[done:])
		done += n
		if errors.Is(err, netstack.ErrWouldBlock) {
			break
		}
		if err != nil {
			r.cut, r.out, r.hears = true, backlog{}, true
			r.later()
		}
	}
	return done
}

// lost is the end of the wire leg.
func (r *relay) lost() {
	r.gone, r.out = true, backlog{}
	if !r.books.lost() {
		r.abort(negotiate.ReasonWireReset, true)
	}
}

// settle ends the flow when both directions are over and the application's kernel
// has delivered everything, or when the application has reset its connection and
// nothing that it sent before can be read now: the reset does not wait for a peer
// that takes nothing, as it does not for a receiver's full buffer.
func (r *relay) settle() {
	switch {
	case r.over || r.queued:
	case r.books.settled(r.gone) && (r.out.len() == 0):
		if !r.delivered() {
			return
		}
		if r.f.side == SideServer && !r.gone { // the client resets the wire leg
			if r.linger.pos < 0 {
				r.s.setTimer(&r.linger, time.Now().Add(serverLinger))
			}
			return
		}
		r.complete()
	case r.failed:
		r.abort(negotiate.ReasonNone, false)
	}
}

// delivered notices that the kernel has delivered everything to the application.
// That takes as long as the application reads.
func (r *relay) delivered() bool {
	if !r.legDone && legDelivered(r.fd) {
		r.legDone = true
		r.s.unwatch(r.fd)
	}
	return r.legDone
}

func (r *relay) lingered() {
	r.s.worksFor(r.f)
	r.complete()
}

func (r *relay) complete() {
	r.over = true
	r.f.complete()
}

func (r *relay) abort(why negotiate.Reason, remote bool) {
	r.over = true
	r.f.abort(why, remote)
}

// close ends the relay of a flow that has ended, for the shard. With a reason the
// peer is told, if that can be done at once. Nobody needs the tail any more.
func (r *relay) close(why negotiate.Reason) {
	r.over = true
	if why != negotiate.ReasonNone && r.out.len() == 0 && !r.cut && !r.gone {
		_, _ = r.f.wire.Write(negotiate.AppendAbort(nil, why))
	}
	r.cut, r.out, r.ring = true, backlog{}, backlog{}
	r.s.setTimer(&r.linger, time.Time{})
	if r.fd >= 0 && !r.legDone {
		r.legDone = true
		r.s.unwatch(r.fd)
	}
	if r.from != nil {
		r.from.sent()
		r.from.written()
	}
}
