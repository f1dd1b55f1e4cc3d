package socket

import (
	"sync"
	"sync/atomic"
	"time"
)

// deadline ends the operations of one direction at a time that can be moved. The zero value never ends anything.
type deadline struct {
	expired atomic.Bool

	mu    sync.Mutex // guards everything below
	over  bool       // by stop
	timer *time.Timer
	gen   uint64 // of the timer: one that was stopped too late has an old one
}

// set moves the deadline; zero removes it. wake is called when it has passed.
func (d *deadline) set(t time.Time, wake func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return
	}
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.gen++
	if t.IsZero() {
		d.expired.Store(false)
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.expired.Store(true)
		wake()
		return
	}
	d.expired.Store(false)
	gen := d.gen
	d.timer = time.AfterFunc(left, func() { d.fire(gen, wake) })
}

func (d *deadline) fire(gen uint64, wake func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if gen == d.gen {
		d.expired.Store(true)
		wake()
	}
}

// stop releases the timer. The deadline cannot be moved any more.
func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	d.gen++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
