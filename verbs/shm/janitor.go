package shm

import (
	"sync"
	"sync/atomic"
	"time"
)

// janitor is the goroutine that ends grace periods and runs their callbacks, so that loops need no lock for it, and
// callbacks run without a lock held.
type janitor struct {
	dev    *Device
	bell   chan struct{}
	stop   chan struct{}
	joined chan struct{}
	soon   atomic.Bool // the next round is at most janitorFast away

	ringing ringing

	mu    sync.Mutex // guards ready; innermost lock
	ready []func()
}

// The memory of ended flows is not urgent: grace periods within janitorFast share one round, and neither a loop nor the
// janitor is woken for each. A stopped peer may not acknowledge for long, so without new work the rounds become rarer
// and rarer.
const (
	janitorFast = 2 * time.Millisecond
	janitorSlow = 100 * time.Millisecond
)

func newJanitor(d *Device) *janitor {
	j := &janitor{dev: d, bell: make(chan struct{}, 1), stop: make(chan struct{}), joined: make(chan struct{})}
	go j.run()
	return j
}

// watch requests a round soon: a grace period has begun, or a callback is ready.
func (j *janitor) watch() {
	if j.soon.Swap(true) {
		return
	}
	select {
	case j.bell <- struct{}{}:
	default:
	}
}

// post makes fn run in the next round.
func (j *janitor) post(fn func()) {
	j.mu.Lock()
	j.ready = append(j.ready, fn)
	j.mu.Unlock()
	j.watch()
}

func (j *janitor) run() {
	defer close(j.joined)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	pause := janitorFast
	for {
		select {
		case <-j.bell:
			pause = janitorFast
			timer.Reset(pause)
		case <-timer.C:
			j.soon.Store(false) // clear before looking, so that a later request rings again
			busy, fresh := j.pollPeers()
			j.runReady()
			if fresh {
				pause = janitorFast
			}
			if busy {
				j.soon.Store(pause == janitorFast)
				timer.Reset(pause)
				pause = min(2*pause, janitorSlow)
			}
		case <-j.stop:
			j.runReady()
			return
		}
	}
}

// pollPeers reports whether a grace period is in progress, and whether one of them is new to the janitor, so that its
// peer is not known to be stopped.
func (j *janitor) pollPeers() (busy, fresh bool) {
	for _, p := range j.dev.Peers() {
		b, f := p.pollGrace()
		busy, fresh = busy || b, fresh || f
	}
	return busy, fresh
}

func (j *janitor) runReady() {
	for {
		j.mu.Lock()
		fns := j.ready
		j.ready = nil
		j.mu.Unlock()
		if len(fns) == 0 {
			return
		}
		for _, fn := range fns {
			fn()
		}
	}
}

// close runs what is ready and ends the goroutine. The peers must be down.
func (j *janitor) close() {
	close(j.stop)
	<-j.joined
}
