package gateway

import (
	"context"
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
// direction goes through the guard first (forward). A mute client may still wait for
// the answer to its SYN.
func (f *flow) startRaw(mute bool) *rawRelay {
	lost := f.appLeg().forRelay() != nil
	f.mu.Lock()
	r := &rawRelay{f: f, leg: f.leg}
	f.raw, f.carrier = r, CarrierRelay
	f.mu.Unlock()
	f.to(StateCarrying)
	f.g.count.carried(CarrierRelay, time.Since(f.start))
	if !mute {
		f.wire.MarkCarrying()
	}
	f.wire.QuickACK()
	askLeg(f.wire)
	if !lost { // the flow goes on
		f.g.wg.Add(1)
		go r.toWire()
	}
	return r
}

// forward writes bytes the guard has cleared: it clears once, with everything
// it held, and from there on the wire is pumped directly.
func (r *rawRelay) forward(b []byte) {
	r.f.wire.MarkCarrying()
	r.f.g.wg.Add(2)
	go r.fromWire(append([]byte(nil), b...))
	go r.watchWire()
}

// watchWire notices a reset of the client although nobody reads from the wire leg:
// an application that does not read holds up what is before the reset, and behind the
// client's FIN there is nothing to read.
func (r *rawRelay) watchWire() {
	defer r.f.g.wg.Done()
	defer r.f.contain()
	news := make(chan struct{}, 1)
	r.f.wire.SetNotify(func() {
		select {
		case news <- struct{}{}:
		default:
		}
	})
	for {
		select {
		case <-news:
			if r.f.wire.Over() && !r.ended() {
				r.f.abort(negotiate.ReasonWireReset, true)
				return
			}
		case <-r.f.gone:
			return
		}
	}
}

func (r *rawRelay) toWire() {
	defer r.f.g.wg.Done()
	defer r.f.contain()
	buf := make([]byte, relayChunk)
	for {
		n, err := r.leg.conn.Read(buf)
		if n > 0 {
			if !r.send(buf[:n]) {
				return
			}
			r.f.tx.Add(uint64(n))
		}
		if errors.Is(err, io.EOF) && !r.leg.wasReset() {
			r.half(func() { _ = r.f.wire.CloseWrite() })
			if r.leg.awaitReset() == nil {
				r.f.abort(negotiate.ReasonNone, false)
			}
			return
		}
		if err != nil {
			r.f.abort(negotiate.ReasonNone, false)
			return
		}
	}
}

// send writes to the wire, as slowly as the other end takes it. The application may
// reset its connection meanwhile.
func (r *rawRelay) send(b []byte) bool {
	if n, err := r.f.wire.Write(b); err == nil { // at once, if it can be
		b = b[n:]
	}
	if len(b) == 0 {
		return true
	}
	ctx, cancel := context.WithCancel(r.f.g.ctx)
	defer cancel()
	var reset bool
	var watch sync.WaitGroup
	watch.Go(func() {
		if reset = r.leg.awaitReset() == nil; reset {
			cancel()
		}
	})
	_, err := r.f.wire.WriteContext(ctx, b)
	r.leg.recall()
	watch.Wait()
	r.leg.attend()
	switch {
	case reset:
		r.f.abort(negotiate.ReasonNone, false)
	case err != nil:
		r.f.abort(negotiate.ReasonWireReset, true)
	}
	return err == nil && !reset
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
			r.half(r.leg.closeWrite)
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

// ended tells whether both directions have ended in order.
func (r *rawRelay) ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.halves == 2
}

// half counts an ended direction, and then passes its end on; after both, the flow
// completes once both stacks have delivered everything.
func (r *rawRelay) half(pass func()) {
	r.mu.Lock()
	r.halves++
	both := r.halves == 2
	r.mu.Unlock()
	pass()
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

// awaitDelivered waits until the kernel of the application has taken
// everything from a leg in the hands of Go's poller. Its owner is the
// application: it takes as long as that reads.
func awaitDelivered(ctx context.Context, leg *appLeg) bool {
	pause := time.Millisecond
	for ctx.Err() == nil {
		if leg.delivered() {
			return true
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Second)
	}
	return false
}
