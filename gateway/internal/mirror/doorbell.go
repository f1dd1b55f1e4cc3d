package mirror

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
)

// ringAgain is after how long a set that sleeps on is rung for once more.
const ringAgain = 20 * time.Millisecond

// Desk is a process's desk, where the gateway looks whether its epoll sets sleep. Its ends share it, on whichever shard.
type Desk struct {
	page   []byte
	rung   [inprocess.Slots]atomic.Uint32
	rungAt [inprocess.Slots]atomic.Int64
	made   time.Time
}

// OpenDesk maps a desk, whose file stays the caller's.
func OpenDesk(fd int) (*Desk, error) {
	page, err := unix.Mmap(fd, 0, inprocess.DeskSize, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map desk: %w", err)
	}
	return &Desk{page: page, made: time.Now()}, nil
}

// Close ends the use of the desk: all ends of the process are closed, and their shards have passed that.
func (d *Desk) Close() error { return unix.Munmap(d.page) }

// sleeps reports whether a set sleeps that nothing was rung for, and counts it as rung for. still tells whether the end is
// at the slot now: one that has left it before this sleep must not ring for those that are there.
func (d *Desk) sleeps(slot uint32, now time.Time, still func() bool) bool {
	s, rung := sleepsOf(d.page, slot).Load(), d.rung[slot].Load()
	at := int64(now.Sub(d.made))
	if s == 0 || s == rung && at-d.rungAt[slot].Load() < int64(ringAgain) {
		return false
	}
	if !still() {
		return true
	}
	if !d.rung[slot].CompareAndSwap(rung, s) { // another end has
		return false
	}
	d.rungAt[slot].Store(at)
	return true
}

// ring wakes the consumer for bytes in the mirror, if it sleeps.
func (e *End) ring() {
	if e.sock < 0 { // [End.Rings] makes up for it
		return
	}
	arm := e.own.arm.Load() // after what has changed
	slot := arm & inprocess.ArmSelf
	if arm != 0 && slot < inprocess.Slots && e.cfg.Desk != nil {
		if e.cfg.Desk.sleeps(slot, e.shard.Now(), func() bool { return e.own.arm.Load() == arm }) {
			e.doorbell()
		}
		return
	}
	e.announce()
}

// announce wakes the consumer for other words of the mirror: a set does not look at those before it sleeps.
func (e *End) announce() {
	if e.sock < 0 {
		return
	}
	arm := e.own.arm.Load() // after what has changed
	switch {
	case arm == 0:
		return
	case arm&inprocess.ArmSelf != inprocess.ArmSelf:
	case arm == e.rung:
		return
	default:
		e.rung = arm
	}
	e.doorbell()
}

// doorbell makes the byte that is left in the receive queue news.
func (e *End) doorbell() {
	e.doorbells.Add(1)
	setLowAt(e.sock, 1)
}
