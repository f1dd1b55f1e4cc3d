package vector

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// spinYield is after how many unsuccessful looks a polling goroutine yields, repeatedly; it also yields earlier at
	// first, see yields. spinClock is after how many it reads the clock.
	spinYield = 32
	spinClock = 8
	// longWait is the multiple of the polling time from which a wait is long: polling would not have ended it.
	longWait = 10
	// After every eagerTurns short waits that polling did not end, the next poll lasts eagerness times the polling time.
	eagerTurns = 16
	eagerness  = 5
	// fruitlessLimit is the number of consecutive long waits after which polling is suspended for a while.
	fruitlessLimit = 8
	// maxSkips bounds the suspension: the number of blocked operations that sleep without polling.
	maxSkips = 256
)

// Waiter is what a blocked operation waits for.
type Waiter interface {
	// Ready reports whether waiting must end. It is called without the token and changes nothing.
	Ready() bool
}

// backoff decides whether polling is worthwhile. After several consecutive waits much longer than the polling time,
// polling is tried more and more rarely; after the first short wait it is always tried again. What counts is the length
// of the wait, not whether polling ended it: two ends that both sleep make each other wait longer than polling lasts.
// To break out of that, one of them must poll for as long as the other takes to wake up, so now and then it does.
type backoff struct {
	fruitless atomic.Int32
	skip      atomic.Int32
	short     atomic.Uint32 // short waits that polling did not end
	eager     atomic.Bool   // poll longer the next time
}

// try reports whether to poll now.
func (b *backoff) try() bool {
	return b.skip.Load() <= 0 || b.skip.Add(-1) <= 0
}

// waited records the end of a wait that polling did not end.
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

// polled records that polling ended a wait.
func (b *backoff) polled() {
	if b.fruitless.Load() != 0 {
		b.fruitless.Store(0)
		b.skip.Store(0)
	}
}

// yields reports whether to yield after the i-th look. An immediate answer comes within a few looks if the peer runs on
// another processor; if it does not come, the peer may be waiting for this processor.
func yields(i int) bool { return i%spinYield == 0 || i == spinYield/2 || i == spinYield/4 }

// Waited records the length of a wait that polling did not end.
func (v *Vector) Waited(d time.Duration) { v.backoff.waited(d > longWait*v.cfg.Polling) }

// Spin polls for up to the polling time and reports whether w became ready. Only one goroutine of a vector polls at a
// time, and handles what arrives for all of them.
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
			v.Kick() // some holder must arm the driver
		case ready:
			v.spinning.Store(false)
			v.stay() // pending output is flushed with the next answer
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
