package shm

import (
	"math/bits"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// driver is the handle with which an event loop drives a vector.
type driver struct {
	v *vector
}

var (
	_ verbs.Driver = (*driver)(nil)
	_ verbs.Peeker = (*driver)(nil)
)

func (d *driver) Progress(now time.Time) (worked bool, next time.Time) {
	v := d.v
	for _, pt := range *v.ports.Load() {
		if pt.progress(v) {
			worked = true
		}
	}
	if v.adoptOrphans() {
		worked = true
	}
	if v.runAgain() {
		worked = true
	}
	return worked, v.expire(now)
}

// progress handles one peer. It reads the epoch before the ready bits and acknowledges it after them: see grace.go.
func (pt *port) progress(v *vector) bool {
	if pt.peer.down.Load() {
		pt.peerDown()
		v.detach(pt)
		return true
	}
	epoch := pt.peer.remEpoch.Load()
	worked := pt.drain()
	if epoch != pt.acked {
		pt.ack.Store(epoch)
		pt.acked = epoch
	}
	return worked
}

// drain runs the queue pairs that the peer has marked. It clears a bit before it looks at the queue pair, so that a
// mark set meanwhile is seen next time.
func (pt *port) drain() bool {
	worked := false
	for i := range pt.summary {
		if pt.summary[i].Load() == 0 {
			continue
		}
		worked = true
		for s := pt.summary[i].Swap(0); s != 0; s &= s - 1 {
			w := i*64 + bits.TrailingZeros64(s)
			pt.drainWord(w)
		}
	}
	return worked
}

func (pt *port) drainWord(w int) {
	for m := pt.bitmap[w].Swap(0); m != 0; m &= m - 1 {
		slot := w*64 + bits.TrailingZeros64(m)
		if slot < firstSlot {
			pt.datagrams(slot)
			continue
		}
		if q := pt.vec.dev.qps[slot].Load(); q != nil && q.port == pt {
			q.run()
		}
	}
}

// peerDown fails the queue pairs connected to the peer.
func (pt *port) peerDown() {
	for _, q := range pt.qps {
		q.peerDown()
	}
}

// runAgain runs the queue pairs scheduled since the last Progress.
func (v *vector) runAgain() bool {
	if len(v.again) == 0 {
		return false
	}
	list := v.again
	v.again = v.spare[:0]
	for _, q := range list {
		q.queued = false
		q.run()
	}
	clear(list)
	v.spare = list[:0]
	return true
}

// schedule makes q run at the next Progress.
func (v *vector) schedule(q *qp) {
	if !q.queued && !q.closed {
		q.queued = true
		v.again = append(v.again, q)
	}
}

// expire ends queue pairs whose RNR retries are exhausted and returns when the next one will be.
func (v *vector) expire(now time.Time) (next time.Time) {
	list := v.timers
	v.timers = v.spareTimers[:0] // an expired queue pair may start its clock again
	for _, q := range list {
		q.timed = false
		switch {
		case q.closed || q.rnrDeadline.IsZero():
		case !now.Before(q.rnrDeadline):
			q.rnrExpired()
		default:
			v.watch(q)
		}
	}
	clear(list)
	v.spareTimers = list[:0]
	for _, q := range v.timers {
		if next.IsZero() || q.rnrDeadline.Before(next) {
			next = q.rnrDeadline
		}
	}
	return next
}

// watch makes expire check q.
func (v *vector) watch(q *qp) {
	if !q.timed {
		q.timed = true
		v.timers = append(v.timers, q)
	}
}

func (d *driver) Flush() {
	v := d.v
	for _, pt := range v.dirty {
		pt.flush()
	}
	clear(v.dirty)
	v.dirty = v.dirty[:0]
}

func (d *driver) Arm() bool {
	ports := *d.v.ports.Load()
	for _, pt := range ports {
		pt.armed.Store(1)
	}
	if len(d.v.again) > 0 || d.v.hasOrphans.Load() || anyReady(ports) {
		d.Disarm()
		return false
	}
	return true
}

func (d *driver) Ready() bool {
	v := d.v
	return len(v.again) > 0 || v.hasOrphans.Load() || anyReady(*v.ports.Load())
}

// anyReady checks once more after arming: a publisher that came before saw the vector awake and has not rung.
func anyReady(ports []*port) bool {
	for _, pt := range ports {
		if pt.peer.down.Load() || pt.peer.remEpoch.Load() != pt.acked {
			return true
		}
		for i := range pt.summary {
			if pt.summary[i].Load() != 0 {
				return true
			}
		}
	}
	return false
}

func (d *driver) Disarm() {
	for _, pt := range *d.v.ports.Load() {
		pt.armed.Store(0)
	}
}

func (d *driver) Close() error {
	if d.v != nil {
		d.v.undrive()
		d.v = nil
	}
	return nil
}
