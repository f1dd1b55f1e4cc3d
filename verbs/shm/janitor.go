package shm

import (
	"sync"
	"sync/atomic"
	"time"
)

// janitor is the goroutine that ends grace periods and runs what waits for
// them. Loops need no lock for that, and callbacks run without a lock held.
type janitor struct {
	dev    *Device
	bell   chan struct{}
	stop   chan struct{}
	joined chan struct{}
	armed  atomic.Bool // it looks at the peers soon in any case

	ringing ringing

	mu    sync.Mutex // guards ready; innermost lock
	ready []func()
}

// The memory of ended flows is not urgent: what ends within janitorFast waits
// together, and no loop is woken for each. A stopped peer may not acknowledge for long; the janitor looks ever less often.
const (
	janitorFast = 2 * time.Millisecond
	janitorSlow = 100 * time.Millisecond
)

func newJanitor(d *Device) *janitor {
	j := &janitor{dev: d, bell: make(chan struct{}, 1), stop: make(chan struct{}), joined: make(chan struct{})}
	go j.run()
	return j
}

// watch has the peers looked at soon: a grace period has begun.
func (j *janitor) watch() {
	if !j.armed.Swap(true) {
		j.wake()
	}
}

func (j *janitor) wake() {
	select {
	case j.bell <- struct{}{}:
	default:
	}
}

// post has fn run soon.
func (j *janitor) post(fn func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ready = append(j.ready, fn)
	j.wake()
}

func (j *janitor) run() {
	defer close(j.joined)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	pause := janitorFast
	for waiting := false; ; {
		select {
		case <-j.bell:
			if j.armed.Load() && !waiting {
				pause, waiting = janitorFast, true
				timer.Reset(pause)
			}
		case <-timer.C:
			j.armed.Store(false) // before it looks: a later request rings again
			var fresh bool
			if waiting, fresh = j.pollPeers(); waiting {
				if fresh {
					pause = janitorFast
				}
				j.armed.Store(true)
				timer.Reset(pause)
				pause = min(2*pause, janitorSlow)
			}
		case <-j.stop:
			j.runReady()
			return
		}
		j.runReady()
	}
}

// pollPeers tells whether a grace period is under way, and whether one is that it
// had not seen yet: whose peer is not known to be stopped.
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

// close runs what is ready and ends the goroutine. The peers are down.
func (j *janitor) close() {
	close(j.stop)
	<-j.joined
}
