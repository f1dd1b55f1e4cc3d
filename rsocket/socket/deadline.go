package socket

import (
	"sync"
	"sync/atomic"
	"time"
)

// Deadline ends the operations of one direction at a time that can be moved. The zero value never ends anything.
type Deadline struct {
	expired atomic.Bool

	mu    sync.Mutex // guards everything below
	over  bool       // by Stop
	timer *time.Timer
	gen   uint64 // of the timer: one that was stopped too late has an old one
}

// Expired tells whether the time has passed.
func (d *Deadline) Expired() bool { return d.expired.Load() }

// Set moves the deadline; zero removes it. wake is called when it has passed.
func (d *Deadline) Set(t time.Time, wake func()) {
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

func (d *Deadline) fire(gen uint64, wake func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if gen == d.gen {
		d.expired.Store(true)
		wake()
	}
}

// Stop releases the timer. The deadline cannot be moved any more.
func (d *Deadline) Stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	d.gen++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
