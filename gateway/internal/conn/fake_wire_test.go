package conn

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/smcgw/smcgw/netstack"
)

// fakeWire is one end of a connection between two gateways: a bounded pipe per
// direction with FIN and RST, and notifications as netstack gives them.
type fakeWire struct {
	link *fakeLink
	peer *fakeWire

	// Guarded by link.mu.
	in       []byte // written by the peer, not yet read
	inEOF    bool
	reset    bool // by either side
	ended    bool // by this side
	notify   func()
	carrying bool
	resets   int // sent by this side

	written, heard uint64
	kept           bool   // alive by probes
	asked          int    // for a sign of life
	probes         int    // as many at most
	gaveUp         bool   // TCP has
	silent         bool   // nothing of the peer's TCP arrives
	acked          uint64 // of written, when it fell silent
}

// fakeLink joins both ends.
type fakeLink struct {
	mu    sync.Mutex
	cond  sync.Cond
	limit int // bytes under way in one direction
	chunk int // bytes taken by one call
}

func newFakeWires(limit, chunk int) (*fakeWire, *fakeWire) {
	l := &fakeLink{limit: limit, chunk: chunk}
	l.cond.L = &l.mu
	a, b := &fakeWire{link: l}, &fakeWire{link: l}
	a.peer, b.peer = b, a
	return a, b
}

// changed wakes all waiters; the lock is held on entry and not on return.
func (l *fakeLink) changed(ws ...*fakeWire) {
	var calls []func()
	for _, w := range ws {
		if w.notify != nil {
			calls = append(calls, w.notify)
		}
	}
	l.cond.Broadcast()
	l.mu.Unlock()
	for _, fn := range calls {
		fn()
	}
}

func (w *fakeWire) Read(p []byte) (int, error) {
	w.link.mu.Lock()
	n, err := w.readLocked(p)
	if err != nil {
		w.link.mu.Unlock()
		return 0, err
	}
	w.link.changed(w.peer)
	return n, nil
}

func (w *fakeWire) readLocked(p []byte) (int, error) {
	switch {
	case w.gaveUp:
		return 0, syscall.ETIMEDOUT
	case w.ended || w.reset && len(w.in) == 0:
		return 0, syscall.ECONNRESET
	case len(w.in) > 0:
		n := copy(p[:min(len(p), w.link.chunk)], w.in)
		w.in = w.in[n:]
		return n, nil
	case w.inEOF:
		return 0, io.EOF
	}
	return 0, netstack.ErrWouldBlock
}

func (w *fakeWire) Write(p []byte) (int, error) {
	w.link.mu.Lock()
	n, err := w.writeLocked(p)
	if err != nil {
		w.link.mu.Unlock()
		return 0, err
	}
	w.link.changed(w.peer)
	return n, nil
}

func (w *fakeWire) writeLocked(p []byte) (int, error) {
	if w.ended || w.reset || w.peer.inEOF {
		return 0, syscall.ECONNRESET
	}
	n := min(len(p), w.link.limit-len(w.peer.in), w.link.chunk)
	if n <= 0 {
		return 0, netstack.ErrWouldBlock
	}
	w.peer.in = append(w.peer.in, p[:n]...)
	w.written += uint64(n)
	if !w.silent {
		w.heard++
	}
	return n, nil
}

// wait repeats op until it does not block any more or ctx ends.
func (w *fakeWire) wait(ctx context.Context, op func() (int, error)) (int, error) {
	stop := context.AfterFunc(ctx, func() {
		w.link.mu.Lock()
		w.link.cond.Broadcast()
		w.link.mu.Unlock()
	})
	defer stop()
	w.link.mu.Lock()
	for {
		n, err := op()
		if err == nil {
			w.link.changed(w.peer)
			return n, nil
		}
		if !errors.Is(err, netstack.ErrWouldBlock) || ctx.Err() != nil {
			w.link.mu.Unlock()
			return n, err
		}
		w.link.cond.Wait()
	}
}

func (w *fakeWire) ReadContext(ctx context.Context, p []byte) (int, error) {
	return w.wait(ctx, func() (int, error) { return w.readLocked(p) })
}

func (w *fakeWire) WriteContext(ctx context.Context, p []byte) (done int, err error) {
	for done < len(p) && err == nil {
		var n int
		n, err = w.wait(ctx, func() (int, error) { return w.writeLocked(p[done:]) })
		done += n
	}
	return done, err
}

func (w *fakeWire) SetNotify(fn func()) {
	w.link.mu.Lock()
	w.notify = fn
	w.link.changed(w)
}

func (w *fakeWire) SetUserTimeout(time.Duration) error { return nil }

func (w *fakeWire) SetKeepalive(idle, _ time.Duration, count int) error {
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	w.kept, w.probes = idle > 0, count
	return nil
}

// Vitals: a peer that is there acknowledges whatever is written to it.
func (w *fakeWire) Vitals() (written, heard uint64) {
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	if w.kept && !w.silent {
		w.heard++
	}
	return w.written, w.heard
}

func (w *fakeWire) Ask(heard func()) {
	w.link.mu.Lock()
	w.asked++
	silent := w.silent
	if !silent {
		w.heard++
	}
	w.link.mu.Unlock()
	if !silent && heard != nil {
		heard()
	}
}

func (w *fakeWire) setSilent(silent bool) {
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	if silent && !w.silent {
		w.acked = w.written
	}
	w.silent = silent
}

func (w *fakeWire) Acknowledged(written uint64) bool {
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	return !w.silent || written <= w.acked
}

func (w *fakeWire) QuickACK() {}

func (w *fakeWire) MarkCarrying() {
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	w.carrying = true
}

func (w *fakeWire) CloseWrite() error {
	w.link.mu.Lock()
	w.peer.inEOF = true
	w.link.changed(w.peer)
	return nil
}

func (w *fakeWire) Close() error { return w.CloseWrite() }

func (w *fakeWire) Abort() {
	w.link.mu.Lock()
	if w.ended {
		w.link.mu.Unlock()
		return
	}
	w.ended, w.notify = true, nil
	if !w.reset {
		w.resets++
	}
	w.reset, w.peer.reset = true, true
	w.link.changed(w.peer)
}

func (w *fakeWire) Over() bool {
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	return w.reset || w.inEOF && w.peer.inEOF && !w.silent
}

func (w *fakeWire) Forget() {
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	w.ended, w.notify = true, nil
	w.link.cond.Broadcast()
}

// cut is what a box on the way does: both ends find the connection reset.
func (w *fakeWire) cut() {
	w.link.mu.Lock()
	w.reset, w.peer.reset = true, true
	w.link.changed(w, w.peer)
}

// fallSilent is what TCP does when it has waited long enough.
func (w *fakeWire) fallSilent() {
	w.link.mu.Lock()
	w.gaveUp = true
	w.link.changed(w)
}

// asks reports whether the peer is asked for signs of life, and how often at most.
func (w *fakeWire) asks() (kept bool, count int) {
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	return w.kept, w.probes
}
