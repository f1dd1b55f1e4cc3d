package shm

import (
	"sync"
	"time"
)

// janitor is the goroutine that ends grace periods and runs what waits for
// them, so that loops need no lock for it and nobody's locks are held.
type janitor struct {
	dev    *Device
	bell   chan struct{}
	stop   chan struct{}
	joined chan struct{}

	mu    sync.Mutex // guards ready; innermost lock
	ready []func()
}

// A stopped peer may not acknowledge for long; the janitor looks ever less often.
const (
	janitorFast = time.Millisecond
	janitorSlow = 100 * time.Millisecond
)

func newJanitor(d *Device) *janitor {
	j := &janitor{dev: d, bell: make(chan struct{}, 1), stop: make(chan struct{}), joined: make(chan struct{})}
	go j.run()
	return j
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
	timer := time.NewTimer(janitorSlow)
	defer timer.Stop()
	for pause := janitorFast; ; {
		select {
		case <-j.bell:
			pause = janitorFast
		case <-timer.C:
			pause = min(2*pause, janitorSlow)
		case <-j.stop:
			j.runReady()
			return
		}
		busy := j.pollPeers()
		j.runReady()
		timer.Stop()
		if busy {
			timer.Reset(pause)
		}
	}
}

func (j *janitor) pollPeers() (busy bool) {
	for _, p := range j.dev.Peers() {
		busy = p.pollGrace() || busy
	}
	return busy
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
