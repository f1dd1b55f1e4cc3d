package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/negotiate"
)

// What an application's kernel would notice by itself, were the gateway not between it
// and its peer (docs/ARCHITECTURE.md "Silent peers"): its probes are answered when the
// peer has answered on the wire leg, and its TCP_USER_TIMEOUT is kept in its place.

// watched is what the programs saw of the application's socket.
func (f *flow) watched(e ebpf.Event) {
	wire := f.wire
	if wire == nil {
		return
	}
	if e.Kind == ebpf.EventTimeout {
		f.g.silences.watch(f, e.UserTimeout)
		return
	}
	answer := func() {
		if err := f.g.steer.InjectApp(ebpf.ProbeSegment(e.Tuple, e.Seq, e.Ack)); err != nil {
			f.g.log.Debug("answer a probe", "flow_id", f.id, "error", err)
		}
	}
	if wire.Over() { // both have ended in order: what is left is on this host
		answer()
		return
	}
	wire.Ask(answer)
}

const (
	// silenceTurn is how often flows whose application has a TCP_USER_TIMEOUT are
	// looked at.
	silenceTurn = 250 * time.Millisecond
	// silenceAsk bounds how long bytes are on their way before the peer is asked.
	silenceAsk = 5 * time.Second
	// silenceGrace is left to the application's own kernel, which knows better why,
	// where it has probes under way.
	silenceGrace = time.Second
)

// silenceClock decides, without I/O of its own, whether bytes of an application have
// been on their way for its TCP_USER_TIMEOUT without any sign of the peer.
//
//	         bytes sent                     asked in vain
//	quiet ───────────────► owed ── ask ───────────────────► silent
//	  ▲   bytes or segments  │   again and again
//	  └──── of the peer ─────┘
//
// Of a look that finds both, what was sent may have come last. Between two looks no
// more than two turns are counted, so that a process that was stopped does not take
// its absence for somebody's silence.
type silenceClock struct {
	begun             bool
	sent, got, heard  uint64
	owed              bool
	seen              time.Time // of the last look
	silent, untilAsks time.Duration
}

// look is told how many bytes went and came and how many segments were heard. The
// peer is to be asked, or over says that it has been silent for too long.
func (k *silenceClock) look(sent, got, heard uint64, now time.Time, timeout time.Duration) (ask, over bool) {
	fresh, news := sent != k.sent, got != k.got || heard != k.heard
	passed := min(now.Sub(k.seen), 2*silenceTurn)
	first := !k.begun
	k.begun, k.sent, k.got, k.heard, k.seen = true, sent, got, heard, now
	if first || news || !k.owed {
		k.owed, k.silent = fresh && !first, 0
		k.untilAsks = min(timeout/3, silenceAsk)
		return false, false
	}
	k.silent += passed
	k.untilAsks -= passed
	if k.untilAsks <= 0 {
		ask, k.untilAsks = true, min(timeout/3, time.Second)
	}
	return ask, k.silent >= timeout+silenceGrace
}

// silences are the flows whose application has a TCP_USER_TIMEOUT. The zero value is
// ready to use.
type silences struct {
	mu    sync.Mutex // guards everything below
	flows map[*flow]*silence
	wake  chan struct{} // closed when there is one; nil: nobody waits
}

type silence struct {
	clock   silenceClock
	timeout time.Duration
}

// watch begins, or ends, to keep the timeout of a flow.
func (s *silences) watch(f *flow, timeout time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if timeout <= 0 {
		delete(s.flows, f)
		return
	}
	if s.flows == nil {
		s.flows = map[*flow]*silence{}
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

// loop looks at them until ctx ends. Without any it sleeps.
func (s *silences) loop(ctx context.Context) {
	tick := time.NewTicker(silenceTurn)
	defer tick.Stop()
	for {
		if s.turn(time.Now()) {
			tick.Reset(silenceTurn)
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
	var ask, over []*flow
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
		f.g.log.Debug("peer silent for the application's TCP_USER_TIMEOUT", "flow_id", f.id)
		f.post(func() { f.abort(negotiate.ReasonPeerDead, false) })
	}
	return left
}

// silent looks at one flow; gone says that it needs no look any more.
func (f *flow) silent(w *silence, now time.Time) (ask, over, gone bool) {
	if f.getState().Final() || f.wire.Over() {
		return false, false, true
	}
	_, heard := f.wire.Vitals()
	ask, over = w.clock.look(f.tx.Load(), f.rx.Load(), heard, now, w.timeout)
	return ask, over, false
}
