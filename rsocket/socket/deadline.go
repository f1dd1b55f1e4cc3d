package socket

import (
	"sync"
	"sync/atomic"
	"time"
)

// Deadline ends the operations of one direction at a time that can be changed. The zero Deadline never does.
type Deadline struct {
	expired atomic.Bool

	mu    sync.Mutex // guards everything below
	over  bool       // Stop was called
	timer *time.Timer
	gen   uint64 // generation of timer: one that fired before it was stopped has an old generation
}

// Expired reports whether the deadline has passed.
func (d *Deadline) Expired() bool { return d.expired.Load() }

// Set sets the deadline; zero removes it. wake is called when it has passed.
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

// Stop stops the timer. Later calls of Set do nothing.
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
