package conn

import (
	"context"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/negotiate"
)

// What an application's kernel would notice by itself, were the gateway not between it
// and its peer (docs/ARCHITECTURE.md "Silent peers"): its probes are answered when the
// peer has answered on the wire leg, and its TCP_USER_TIMEOUT, or the tcp_retries2 of its
// host, is kept in its place.

// Watched tells what the programs saw of the application's socket.
func (f *Flow) Watched(e ebpf.Event) { f.post(func() { f.watched(e) }) }

func (f *Flow) watched(e ebpf.Event) {
	wire := f.wire
	if wire == nil {
		return
	}
	if e.Kind == ebpf.EventTimeout {
		f.env.silences.watch(f, e.UserTimeout)
		return
	}
	answer := func() {
		if err := f.env.Steering.InjectApp(ebpf.ProbeSegment(e.Tuple, e.Seq, e.Ack)); err != nil {
			f.debug("answer a probe", "error", err)
		}
	}
	if wire.Over() { // both have ended in order: what is left is on this host
		answer()
		return
	}
	wire.Ask(answer)
}

// silences are the flows whose application has such a timeout. The zero value is ready
// to use.
type silences struct {
	mu    sync.Mutex // guards everything below
	flows map[*Flow]*silence
	wake  chan struct{} // closed when there is one; nil: the loop does not wait
}

type silence struct {
	clock   life.SilenceClock
	timeout time.Duration
}

// watch begins, or ends, to keep the timeout of a flow.
func (s *silences) watch(f *Flow, timeout time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if timeout <= 0 {
		delete(s.flows, f)
		return
	}
	if s.flows == nil {
		s.flows = map[*Flow]*silence{}
	}
	if w := s.flows[f]; w != nil {
		w.timeout = timeout
		return
	}
	s.flows[f] = &silence{timeout: timeout}
	if s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
}

// SilenceLoop keeps the timeouts of applications in place of their kernels, until ctx ends.
func (e *Env) SilenceLoop(ctx context.Context) { e.silences.loop(ctx) }

// loop looks at them until ctx ends. Without any it sleeps.
func (s *silences) loop(ctx context.Context) {
	tick := time.NewTicker(life.SilenceTurn)
	defer tick.Stop()
	for {
		if s.turn(time.Now()) {
			tick.Reset(life.SilenceTurn)
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
				return
			}
		}
		tick.Stop()
		select {
		case <-s.awake():
		case <-ctx.Done():
			return
		}
	}
}

// awake is closed when there is a flow to look at.
func (s *silences) awake() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	wake := make(chan struct{})
	if len(s.flows) > 0 {
		close(wake)
	} else {
		s.wake = wake
	}
	return wake
}

// turn looks at every flow once, and tells whether there are any.
func (s *silences) turn(now time.Time) bool {
	var ask, over []*Flow
	s.mu.Lock()
	for f, w := range s.flows {
		asks, ends, gone := f.silent(w, now)
		switch {
		case gone:
			delete(s.flows, f)
		case ends:
			over = append(over, f)
		case asks:
			ask = append(ask, f)
		}
	}
	left := len(s.flows) > 0
	s.mu.Unlock()
	for _, f := range ask {
		f.wire.Ask(nil)
	}
	for _, f := range over {
		f.debug("peer silent for the application's timeout")
		f.post(func() { f.abort(negotiate.ReasonPeerDead, false) })
	}
	return left
}

// silent looks at one flow; gone says that it needs no look any more.
func (f *Flow) silent(w *silence, now time.Time) (ask, over, gone bool) {
	if f.state().Final() {
		return false, false, true
	}
	if w.clock.Idle(f.tx.Load()) {
		return false, false, false
	}
	if f.wire.Over() {
		return false, false, true
	}
	_, heard := f.wire.Vitals()
	ask, over = w.clock.Look(f.tx.Load(), f.rx.Load(), heard, now, w.timeout)
	return ask, over, false
}
