package vector

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// spinYield is after how many fruitless looks a polling goroutine lets others run, again and again; at first it does so
	// earlier, see yields. spinClock is after how many it looks at the clock.
	spinYield = 32
	spinClock = 8
	// longWait is the multiple of the polling time beyond which a wait is long: polling would not have ended it.
	longWait = 10
	// After every so many short waits that polling did not end, eagerness times the polling time is polled.
	eagerTurns = 16
	eagerness  = 5
	// fruitlessLimit is how many long waits there may be in a row before polling is given up for a while.
	fruitlessLimit = 8
	// maxSkips bounds that while: so many blocked operations sleep at once before polling is tried again.
	maxSkips = 256
)

// Waiter is what a blocked operation waits for.
type Waiter interface {
	// Ready tells whether waiting has an end. It is called without the token and changes nothing.
	Ready() bool
}

// backoff decides whether polling is worth it: after some waits in a row that lasted much longer than polling does it is
// tried more and more rarely, after the first short one always again. What counts is the wait and not whether polling
// ended it: two ends that both sleep make each other wait longer than polling lasts. To get out of it, one of them has to
// poll for as long as the other one takes to wake up, so now and then it does.
type backoff struct {
	fruitless atomic.Int32
	skip      atomic.Int32
	short     atomic.Uint32 // short waits that polling did not end
	eager     atomic.Bool   // poll longer the next time
}

// try tells whether to poll now.
func (b *backoff) try() bool {
	return b.skip.Load() <= 0 || b.skip.Add(-1) <= 0
}

// waited says how a wait ended that polling did not.
func (b *backoff) waited(long bool) {
	if !long {
		b.eager.Store(b.short.Add(1)%eagerTurns == 0)
		b.polled()
		return
	}
	if n := b.fruitless.Add(1); n >= fruitlessLimit {
		b.skip.Store(min(maxSkips, int32(1)<<min(n-fruitlessLimit, 8)))
	}
}

// polled says that polling ended a wait.
func (b *backoff) polled() {
	if b.fruitless.Load() != 0 {
		b.fruitless.Store(0)
		b.skip.Store(0)
	}
}

// yields tells whether to let others run after the i-th look. What comes at once comes within a few looks while the peer
// runs on another processor; if it does not, the peer may be waiting for this one.
func yields(i int) bool { return i%spinYield == 0 || i == spinYield/2 || i == spinYield/4 }

// Waited says how long a wait was that polling did not end.
func (v *Vector) Waited(d time.Duration) { v.backoff.waited(d > longWait*v.cfg.Polling) }

// Spin polls for up to the polling time and tells whether w became ready. One goroutine of a vector polls at a time:
// whatever arrives meanwhile is for all of them.
func (v *Vector) Spin(w Waiter) bool {
	limit := v.cfg.Polling
	if limit <= 0 || !v.backoff.try() || !v.spinning.CompareAndSwap(false, true) {
		return false
	}
	if v.backoff.eager.Load() {
		v.backoff.eager.Store(false)
		limit *= eagerness
	}
	start := time.Now()
	now := start
	ready := false
	for i := 1; ; i++ {
		if i%spinClock == 0 {
			now = time.Now()
		}
		entered := v.TryEnter()
		if entered {
			v.progress(now)
			v.serve()
		}
		ready = w.Ready()
		over := ready || now.Sub(start) > limit
		switch {
		case over && !entered:
			v.spinning.Store(false)
			v.Kick() // the last holder arms the driver
		case ready:
			v.spinning.Store(false)
			v.stay() // with what waits to be flushed
		case over:
			v.spinning.Store(false)
			v.attended = false
			v.driver.Flush()
			v.Leave()
		case entered:
			v.driver.Flush()
			v.release()
		}
		if over {
			break
		}
		if yields(i) {
			runtime.Gosched()
		}
	}
	if ready {
		v.backoff.polled()
	}
	return ready
}
