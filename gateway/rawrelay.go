package gateway

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

// rawRelay serves a native client whose accept was lost on the way: bytes,
// FIN and RST go through between two TCP connections, nothing is added.
type rawRelay struct {
	f   *flow
	leg *appLeg

	mu     sync.Mutex // guards everything below
	halves int        // directions that have ended in order
}

// startRaw pumps from the application to the wire at once; the other
// direction goes through the guard first (forward).
func (f *flow) startRaw() *rawRelay {
	lost := f.appLeg().forRelay() != nil
	f.mu.Lock()
	r := &rawRelay{f: f, leg: f.leg}
	f.raw, f.carrier = r, CarrierRelay
	f.mu.Unlock()
	f.to(StateCarrying)
	f.g.count.carried(CarrierRelay, time.Since(f.start))
	f.wire.MarkCarrying()
	f.wire.QuickACK()
	askLeg(f.wire)
	if lost { // the flow has ended, or there is no descriptor left
		f.abort(negotiate.ReasonDeviceFailed, false)
		return r
	}
	f.g.wg.Add(1)
	go r.toWire()
	return r
}

// forward writes bytes the guard has cleared: it clears once, with everything
// it held, and from there on the wire is pumped directly.
func (r *rawRelay) forward(b []byte) {
	r.f.g.wg.Add(1)
	go r.fromWire(append([]byte(nil), b...))
}

func (r *rawRelay) toWire() {
	defer r.f.g.wg.Done()
	defer r.f.contain()
	buf := make([]byte, relayChunk)
	for {
		n, err := r.leg.conn.Read(buf)
		if n > 0 {
			if _, werr := r.f.wire.WriteContext(r.f.g.ctx, buf[:n]); werr != nil {
				r.f.abort(negotiate.ReasonWireReset, true)
				return
			}
			r.f.tx.Add(uint64(n))
		}
		if errors.Is(err, io.EOF) && !r.leg.wasReset() {
			_ = r.f.wire.CloseWrite()
			r.half()
			return
		}
		if err != nil {
			r.f.abort(negotiate.ReasonNone, false)
			return
		}
	}
}

func (r *rawRelay) fromWire(first []byte) {
	defer r.f.g.wg.Done()
	defer r.f.contain()
	if !r.toApp(first) {
		return
	}
	buf := make([]byte, relayChunk)
	for {
		n, err := r.f.wire.ReadContext(r.f.g.ctx, buf)
		if errors.Is(err, io.EOF) {
			r.leg.closeWrite()
			r.half()
			return
		}
		if err != nil {
			r.f.abort(negotiate.ReasonWireReset, true)
			return
		}
		if !r.toApp(buf[:n]) {
			return
		}
	}
}

func (r *rawRelay) toApp(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	if _, err := r.leg.conn.Write(b); err != nil {
		r.f.abort(negotiate.ReasonNone, false)
		return false
	}
	r.f.rx.Add(uint64(len(b)))
	return true
}

// half counts an ended direction; after both, the flow completes once both
// stacks have delivered everything.
func (r *rawRelay) half() {
	r.mu.Lock()
	r.halves++
	both := r.halves == 2
	r.mu.Unlock()
	r.f.to(StateClosing)
	if !both {
		return
	}
	if awaitDelivered(r.f.g.ctx, r.leg) {
		r.linger()
		r.f.completeRaw()
	}
}

// linger lets the wire leg deliver what it still has, and its FIN: that needs
// the steering.
func (r *rawRelay) linger() {
	_ = r.f.wire.Close()
	late := time.NewTimer(serverLinger)
	defer late.Stop()
	select {
	case <-late.C:
	case <-r.f.gone:
	case <-r.f.g.ctx.Done():
	}
}
