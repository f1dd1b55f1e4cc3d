package mirror

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
)

// ringAgain is the time after which a set that still sleeps is rung for again.
const ringAgain = 20 * time.Millisecond

// Desk is a process's desk, by which the gateway sees whether its epoll sets sleep. The ends of the process share it,
// across shards.
type Desk struct {
	page   []byte
	rung   [inprocess.Slots]atomic.Uint32
	rungAt [inprocess.Slots]atomic.Int64
	made   time.Time
}

// OpenDesk maps a desk. The file stays the caller's.
func OpenDesk(fd int) (*Desk, error) {
	page, err := unix.Mmap(fd, 0, inprocess.DeskSize, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map desk: %w", err)
	}
	return &Desk{page: page, made: time.Now()}, nil
}

// Close unmaps the desk. All ends of the process must be closed, and their shards must have seen it.
func (d *Desk) Close() error { return unix.Munmap(d.page) }

// sleeps reports whether an end must ring for the set at a slot: the set sleeps, and this sleep has not been rung for,
// or not for ringAgain. It records the ring for all ends at the slot; but not if still returns false, as the end has
// then left the slot and its doorbell would not wake the others.
func (d *Desk) sleeps(slot uint32, now time.Time, still func() bool) bool {
	s, rung := sleepsOf(d.page, slot).Load(), d.rung[slot].Load()
	at := int64(now.Sub(d.made))
	if s == 0 || s == rung && at-d.rungAt[slot].Load() < int64(ringAgain) {
		return false
	}
	if !still() {
		return true
	}
	if !d.rung[slot].CompareAndSwap(rung, s) { // another end has rung
		return false
	}
	d.rungAt[slot].Store(at)
	return true
}

// ring rings the doorbell for bytes in the mirror, if the consumer sleeps.
func (e *End) ring() {
	if e.sock < 0 { // Rings makes up for it
		return
	}
	arm := e.own.arm.Load() // after the words: the consumer arms, then reads them
	slot := arm & inprocess.ArmSelf
	if arm != 0 && slot < inprocess.Slots && e.cfg.Desk != nil {
		if e.cfg.Desk.sleeps(slot, e.shard.Now(), func() bool { return e.own.arm.Load() == arm }) {
			e.doorbell()
		}
		return
	}
	e.announce()
}

// announce rings for changes of words other than head. A set does not look at those before it sleeps, so it rings for a
// slot even if the slot's set does not sleep.
func (e *End) announce() {
	if e.sock < 0 {
		return
	}
	arm := e.own.arm.Load() // after the words: the consumer arms, then reads them
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

// doorbell makes the socket readable: with SO_RCVLOWAT 1, the byte left in its receive queue suffices. A library that has
// left the ring waits for nothing, and SO_RCVLOWAT is the program's again.
func (e *End) doorbell() {
	if e.own.flags.Load()&inprocess.Gone != 0 {
		return
	}
	e.doorbells.Add(1)
	setLowAt(e.sock, 1)
}
