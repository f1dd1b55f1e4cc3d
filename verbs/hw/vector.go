package hw

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// vector is one event loop's part of the device. Its completion queues share a completion channel, on whose fd the loop
// sleeps.
type vector struct {
	dev     *Device
	index   int
	comp    int // completion vector of the adapter
	channel channel

	cqs atomic.Pointer[[]*cq] // read by the loop; mu guards changes

	// Owned by the loop.
	batch  batch
	arming []ibv.CQ // scratch of Arm
	events [32]uint64

	mu     sync.Mutex // guards everything below
	poller verbs.Poller
}

func newVector(d *Device, index, comp int) (*vector, error) {
	v := &vector{dev: d, index: index, comp: comp}
	v.cqs.Store(new([]*cq))
	var err error
	v.channel.h, v.channel.fd, err = d.ctx.CreateChannel()
	if err != nil {
		return nil, failure("completion channel", err)
	}
	return v, nil
}

// add adds a completion queue to the vector.
func (v *vector) add(c *cq) {
	v.mu.Lock()
	defer v.mu.Unlock()
	list := append(slices.Clone(*v.cqs.Load()), c)
	v.cqs.Store(&list)
}

func (v *vector) remove(c *cq) {
	v.mu.Lock()
	defer v.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*v.cqs.Load()), func(o *cq) bool { return o == c })
	v.cqs.Store(&list)
}

// driver is the handle with which an event loop drives a vector. The adapter works without it; it posts the loop's
// requests and lets the loop sleep.
type driver struct {
	v      *vector
	deaf   bool // arming failed: no event will come
	closed bool
}

// deafInterval is how often the queues are polled of a device that cannot be armed. Such a device is about to be
// closed.
const deafInterval = 10 * time.Millisecond

var (
	_ verbs.Driver = (*driver)(nil)
	_ verbs.Peeker = (*driver)(nil)
)

// Drive implements verbs.Device.
func (d *Device) Drive(index int, p verbs.Poller) (verbs.Driver, error) {
	if index < 0 || index >= len(d.vectors) {
		return nil, fmt.Errorf("vector %d: %w", index, verbs.ErrInvalid)
	}
	if err := d.hold(); err != nil {
		return nil, err
	}
	if err := d.vectors[index].drive(p); err != nil {
		_ = d.release()
		return nil, err
	}
	return &driver{v: d.vectors[index]}, nil
}

func (v *vector) drive(p verbs.Poller) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.poller != nil {
		return fmt.Errorf("vector %d: %w", v.index, verbs.ErrBusy)
	}
	if err := p.Add(v.channel.fd); err != nil {
		return fmt.Errorf("poll vector %d: %w", v.index, err)
	}
	v.poller = p
	return nil
}

// Progress implements verbs.Driver. The adapter makes progress by itself; there was work if completions were fetched
// that the loop has not polled.
func (d *driver) Progress(now time.Time) (worked bool, next time.Time) {
	for _, c := range *d.v.cqs.Load() {
		if c.stashedNow() > 0 {
			worked = true
		}
	}
	if d.deaf {
		next = now.Add(deafInterval)
	}
	return worked, next
}

func (d *driver) Flush() { d.v.flush() }

func (v *vector) flush() { v.batch.flush(v.dev) }

// Ready implements verbs.Peeker. Completions that it finds are stashed for Poll.
func (d *driver) Ready() bool {
	ready := !d.v.batch.empty()
	for _, c := range *d.v.cqs.Load() {
		if c.stashedNow() > 0 || c.fill() > 0 {
			ready = true
		}
	}
	return ready
}

// Arm implements verbs.Driver. A queue stays armed until its event is taken. Only the others are armed now; completions
// that they got before cause no event, so they are polled again. A queue created meanwhile is not included: it is armed
// the next time.
func (d *driver) Arm() bool {
	v := d.v
	v.takeEvents()
	idle := v.batch.empty()
	v.arming = v.arming[:0]
	cqs := *v.cqs.Load()
	for _, c := range cqs {
		if !c.armed {
			v.arming = append(v.arming, c.h)
		}
	}
	if deaf := len(v.arming) > 0 && v.dev.ctx.Notify(v.arming) != nil; deaf != d.deaf {
		d.deaf, idle = deaf, false // Progress must report when to look again
	}
	for _, c := range cqs {
		if !c.armed {
			c.armed = !d.deaf
			c.fill()
		}
		if c.stashedNow() > 0 {
			idle = false
		}
	}
	return idle
}

// takeEvents takes events, to find out which queues are no longer armed. It calls the library only if some are armed.
func (v *vector) takeEvents() {
	if !slices.ContainsFunc(*v.cqs.Load(), func(c *cq) bool { return c.armed }) {
		return
	}
	for n := len(v.events); n == len(v.events); {
		n = v.dev.ctx.Events(v.channel.h, v.events[:])
		for _, id := range v.events[:n] {
			for _, c := range *v.cqs.Load() {
				if c.id == id {
					c.armed = false
				}
			}
		}
	}
}

// Disarm implements verbs.Driver. Armed queues stay armed: a superfluous event wakes the loop once.
func (d *driver) Disarm() {}

func (d *driver) Close() error {
	if d.closed {
		return nil
	}
	d.closed = true
	v := d.v
	v.mu.Lock()
	_ = v.poller.Remove(v.channel.fd)
	v.poller = nil
	v.mu.Unlock()
	return v.dev.release()
}
