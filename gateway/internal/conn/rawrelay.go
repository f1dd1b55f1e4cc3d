package conn

import (
	"errors"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// rawRelay serves a native client whose accept was lost on the way: it passes bytes, FIN and
// RST between two TCP connections and adds nothing. Like relay, it is a pump of the flow's
// shard. It buffers at most what one read from a side returned, and reads no more from that
// side until the other has taken it.
//
//	guarded ── forward ──► both ways ── FIN both ways, app leg delivered ──► lingering ──► complete
//	app ─► wire only
type rawRelay struct {
	bulk

	out, in backlog // not yet taken by the wire leg and by the application

	posted atomic.Bool // the wire leg's notification is on its way to the shard
	look   func()      // noticed, bound once
	hears  bool        // the wire leg may have something to read
	clear  bool        // the guard has cleared what the client sent first
	linger loop.Timer  // runs while the wire leg delivers the rest, and its FIN
}

// startRaw starts pumping from the application to the wire at once; the other direction goes
// through the guard first (see forward). A mute client may still be waiting for the answer to
// its SYN. The guard continues to be notified of the wire leg through look.
func (f *Flow) startRaw(mute bool, look func()) *rawRelay {
	r := &rawRelay{}
	r.bulk = newBulk(f, r)
	r.look, r.linger = r.noticed, loop.NewTimer(r.lingered)
	if !f.core.CarriedBy(life.ByRaw) { // the flow has ended
		return r
	}
	f.raw = r
	f.begins(report.CarrierRelay)
	if !mute {
		f.wire.MarkCarrying()
	}
	f.wire.QuickACK()
	askLeg(f.wire)
	fd, err := f.leg.take()
	if err != nil { // the flow has ended
		return r
	}
	r.fd, r.readable, r.writable = fd, true, true
	if err := r.s.Join(r, fd); err != nil {
		r.f.abort(negotiate.ReasonDeviceFailed, false)
		return r
	}
	f.wire.SetNotify(func() {
		look()
		r.notify()
	})
	return r
}

// forward delivers bytes that the guard has cleared. The guard clears once, with everything
// it held; from then on the wire is pumped directly.
func (r *rawRelay) forward(b []byte) {
	r.f.wire.MarkCarrying()
	r.clear = true
	r.in.put(b)
	r.f.wire.SetNotify(r.notify) // which notifies at once
}

// notify asks the shard to look at the wire leg. It only posts.
func (r *rawRelay) notify() {
	if r.posted.CompareAndSwap(false, true) {
		r.s.Post(r.look)
	}
}

func (r *rawRelay) noticed() {
	r.posted.Store(false)
	r.hears = true
	r.later()
}

// watchable implements pump. A raw relay is not watched: the two kernels and their timers do
// that.
func (r *rawRelay) watchable() (fd int, ok bool) { return -1, false }

// lookForStall implements pump.
func (*rawRelay) lookForStall(legReady, time.Time, time.Duration) {}

// over reports whether nothing is moved any more.
func (r *rawRelay) over() bool { return r.turn == bulkStopped || r.fd < 0 || r.f.core.Ended() }

// txEnded reports whether the application's end has been passed on, rxEnded whether the
// client's has.
func (r *rawRelay) txEnded() bool { return r.f.core.Tx != life.TxOpen }
func (r *rawRelay) rxEnded() bool { return r.f.core.Rx >= life.RxShut }

// Step implements loop.BulkMember.
func (r *rawRelay) Step() (moved int) {
	if !r.begins() || r.over() {
		return 0
	}
	moved = r.toApp() + r.fromWire() + r.toWire() + r.fromApp()
	r.settle()
	return moved
}

// toApp writes pending bytes to the application.
func (r *rawRelay) toApp() (n int) {
	if r.in.len() > 0 {
		n = r.give(r.in.bytes())
		r.in.drop(n)
	}
	return n
}

func (r *rawRelay) give(b []byte) (n int) {
	for r.writable && !r.failed && n < len(b) {
		n += r.write(r.fd, b[n:])
	}
	r.f.rx.Add(uint64(n))
	return n
}

// fromWire reads at most one chunk for the application.
func (r *rawRelay) fromWire() (moved int) {
	buf := r.s.BulkBuffer(negotiate.DataHeaderLen + relayChunk)
	for r.clear && r.hears && r.in.len() == 0 && !r.rxEnded() && !r.failed && !r.over() {
		if moved == relayChunk {
			r.later()
			break
		}
		n, err := r.f.wire.Read(buf[:relayChunk-moved])
		switch {
		case errors.Is(err, netstack.ErrWouldBlock):
			r.hears = false
		case errors.Is(err, io.EOF):
			_ = unix.Shutdown(r.fd, unix.SHUT_WR) // reading will show if the leg is gone
			r.f.core.RawWireEnds()
			r.f.noted()
		case err != nil:
			r.f.abort(negotiate.ReasonWireReset, true)
		default:
			moved += n
			if taken := r.give(buf[:n]); taken < n {
				r.in.put(buf[taken:n])
			}
		}
	}
	return moved
}

// toWire writes pending bytes to the wire leg.
func (r *rawRelay) toWire() (n int) {
	if r.out.len() > 0 {
		n = r.push(r.out.bytes())
		r.out.drop(n)
	}
	return n
}

func (r *rawRelay) push(b []byte) (done int) {
	for done < len(b) && !r.over() {
		n, err := r.f.wire.Write(b[done:])
		done += n
		if errors.Is(err, netstack.ErrWouldBlock) {
			break
		}
		if err != nil {
			if !r.clear || !r.f.wire.Over() { // else settle ends the flow
				r.f.abort(negotiate.ReasonWireReset, true)
			}
			break
		}
	}
	return done
}

// fromApp reads at most one chunk for the client.
func (r *rawRelay) fromApp() (moved int) {
	buf := r.s.BulkBuffer(negotiate.DataHeaderLen + relayChunk)
	for r.readable && r.out.len() == 0 && !r.txEnded() && !r.over() {
		if moved == relayChunk {
			r.later()
			break
		}
		n, got := r.read(r.fd, buf[:relayChunk-moved], r.s.Now())
		switch got {
		case legBytes:
			moved += n
			r.f.sent(n)
			if taken := r.push(buf[:n]); taken < n && !r.over() {
				r.out.put(buf[taken:n])
			}
		case legEnd:
			_ = r.f.wire.CloseWrite()
			r.f.core.RawLegEnds()
			r.f.rouse()
			r.f.noted()
		case legReset:
			r.readable = false
		case legNothing:
		}
	}
	return moved
}

// settle ends the flow after FIN in both directions, when both stacks have delivered
// everything, or after a reset. The application's reset does not wait for a client that takes
// nothing, nor the client's for an application that does not read: after a FIN, or with bytes
// still pending, nothing else would report it. If the application has ended its direction, a
// wire leg that is over may have ended in order, with bytes still to be read.
func (r *rawRelay) settle() {
	switch {
	case r.over() || r.turn == bulkQueued:
	case r.txEnded() && r.rxEnded():
		if !r.delivered() || r.linger.Pending() {
			return
		}
		_ = r.f.wire.Close()
		r.s.SetTimer(&r.linger, time.Now().Add(life.ServerLinger))
	case r.failed:
		if r.placed(r.out.len() == 0 && r.f.written()) {
			r.f.abort(negotiate.ReasonAppReset, false)
		}
	case r.clear && !r.txEnded() && r.f.wire.Over():
		if r.in.len() == 0 && !r.rxEnded() { // fromWire reads up to the reset
			r.hears = true
			r.later()
			return
		}
		r.f.abort(negotiate.ReasonWireReset, true)
	}
}

func (r *rawRelay) delivered() bool {
	done := &r.f.core.LegDone
	if !*done && legDelivered(r.fd) {
		*done = true
		r.s.Leave(r.fd)
	}
	return *done
}

// lingered ends the flow, unless the client still lacks bytes: what it acknowledges reaches the
// wire leg only while there is a flow. A client that acknowledges nothing ends the wire leg.
func (r *rawRelay) lingered() {
	r.s.WorksFor(r.f)
	if !r.f.core.Ended() && !r.f.wire.Over() && !r.f.written() {
		r.s.SetTimer(&r.linger, time.Now().Add(life.ServerLinger))
		return
	}
	r.f.do(r.f.core.RawOver())
}

// close stops the pump of a flow that has ended. It must be called on the shard.
func (r *rawRelay) close() {
	r.out, r.in = backlog{}, backlog{}
	r.s.SetTimer(&r.linger, time.Time{})
	if r.fd >= 0 && !r.f.core.LegDone {
		r.f.core.LegDone = true
		r.s.Leave(r.fd)
	}
}
