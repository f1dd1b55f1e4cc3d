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

// vector is one event loop's part of the device. Its completion queues share a
// completion channel, whose fd the loop sleeps on; those with a channel of
// their user's have one each, since one queue cannot be armed for two.
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

// add makes a completion queue one of the vector's.
func (v *vector) add(c *cq) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if c.user != nil && v.poller != nil {
		if err := v.poller.Add(c.own.fd); err != nil {
			return err
		}
	}
	list := append(slices.Clone(*v.cqs.Load()), c)
	v.cqs.Store(&list)
	return nil
}

func (v *vector) remove(c *cq) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if c.user != nil && v.poller != nil {
		_ = v.poller.Remove(c.own.fd)
	}
	list := slices.DeleteFunc(slices.Clone(*v.cqs.Load()), func(o *cq) bool { return o == c })
	v.cqs.Store(&list)
}

// fds returns what the loop sleeps on. The caller holds mu.
func (v *vector) fds() []int {
	fds := []int{v.channel.fd}
	for _, c := range *v.cqs.Load() {
		if c.user != nil {
			fds = append(fds, c.own.fd)
		}
	}
	return fds
}

// driver is a vector in the hands of an event loop. The adapter works without
// it; it posts what the loop has gathered, and lets it sleep.
type driver struct {
	v      *vector
	deaf   bool // the library does not arm: no event will come
	closed bool
}

// deafInterval is how often the queues of a device are looked at that cannot be
// armed. It is about to be closed.
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
	for i, fd := range v.fds() {
		if err := p.Add(fd); err != nil {
			for _, added := range v.fds()[:i] {
				_ = p.Remove(added)
			}
			return fmt.Errorf("poll vector %d: %w", v.index, err)
		}
	}
	v.poller = p
	return nil
}

// Progress implements verbs.Driver: the adapter makes progress by itself. There
// was work if completions were fetched that the loop has not polled, or events
// came for users of channels of their own.
func (d *driver) Progress(now time.Time) (worked bool, next time.Time) {
	for _, c := range *d.v.cqs.Load() {
		if c.stashedNow() > 0 || c.user != nil && c.armed && c.notified() {
			worked = true
		}
	}
	if d.deaf {
		next = now.Add(deafInterval)
	}
	return worked, next
}

// notified passes the event of an armed queue on to the channel of its user.
func (c *cq) notified() bool {
	v := c.vec
	if v.dev.ctx.Events(c.own.h, v.events[:1]) == 0 {
		return false
	}
	c.armed = false
	c.user.Notify(c)
	return true
}

// Flush implements verbs.Driver.
func (d *driver) Flush() { d.v.flush() }

func (v *vector) flush() { v.batch.flush(v.dev) }

// Ready implements verbs.Peeker. What it finds it keeps for Poll.
func (d *driver) Ready() bool {
	ready := !d.v.batch.empty()
	for _, c := range *d.v.cqs.Load() {
		if c.user == nil && (c.stashedNow() > 0 || c.fill() > 0) {
			ready = true
		}
	}
	return ready
}

// Arm implements verbs.Driver. A queue stays armed until its event was taken;
// only the others are armed now, and they may have got completions before that,
// of which no event tells. A queue that is made meanwhile is not one of them: it is
// armed the next time.
func (d *driver) Arm() bool {
	v := d.v
	v.takeEvents()
	idle := v.batch.empty()
	v.arming = v.arming[:0]
	cqs := *v.cqs.Load()
	for _, c := range cqs {
		if c.user == nil && !c.armed {
			v.arming = append(v.arming, c.h)
		}
	}
	if deaf := len(v.arming) > 0 && v.dev.ctx.Notify(v.arming, false) != nil; deaf != d.deaf {
		d.deaf, idle = deaf, false // Progress has to say when to look again
	}
	for _, c := range cqs {
		if c.user == nil && !c.armed {
			c.armed = !d.deaf
			c.fill()
		}
		if c.stashedNow() > 0 {
			idle = false
		}
	}
	return idle
}

// takeEvents finds out which queues are not armed any more. It asks only if some are.
func (v *vector) takeEvents() {
	if !slices.ContainsFunc(*v.cqs.Load(), func(c *cq) bool { return c.user == nil && c.armed }) {
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

// Disarm implements verbs.Driver. What is armed stays so: an event too many
// wakes the loop once.
func (d *driver) Disarm() {}

// Close implements verbs.Driver.
func (d *driver) Close() error {
	if d.closed {
		return nil
	}
	d.closed = true
	v := d.v
	v.mu.Lock()
	for _, fd := range v.fds() {
		_ = v.poller.Remove(fd)
	}
	v.poller = nil
	v.mu.Unlock()
	return v.dev.release()
}
