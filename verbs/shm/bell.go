package shm

import "github.com/smcgw/smcgw/verbs"

// notify marks a queue pair of the peer ready, and leaves ringing the bell to Flush or push. If the bit is still set,
// the peer's loop has yet to clear it and look at the queue pair afterwards, so nothing more is needed. Only the queue
// pair's one partner sets its bit, so a goroutine that finds the bit set has itself set the summary before.
func (pt *port) notify(vector int, slot uint32) {
	t := &pt.peer.targets[vector]
	word, bit := slot/64, uint64(1)<<(slot%64)
	if t.bitmap[word].Load()&bit == 0 {
		t.bitmap[word].Or(bit)
		t.summary[word/64].Or(1 << (word % 64))
	}
	if !pt.listed {
		pt.listed = true
		pt.vec.dirty = append(pt.vec.dirty, pt)
	}
	pt.dirty |= 1 << vector
}

// push rings immediately for bytes, which a sleeping loop can then read while the rest of the turn is still being
// written (studies: without, -20 % bulk throughput).
func (pt *port) push(s *sendSlot) {
	if s.length > 0 || s.flags&verbs.SendPush != 0 {
		pt.ringAll()
	}
}

// flush rings the bells that are due.
func (pt *port) flush() {
	if !pt.peer.down.Load() {
		pt.ringAll()
	}
	pt.listed = false
}

// ringAll rings every vector of the peer with pending notifications.
func (pt *port) ringAll() {
	for i := range pt.peer.targets {
		if pt.dirty&(1<<i) != 0 {
			pt.vec.dev.ring(&pt.vec.ringing, &pt.peer.targets[i])
		}
	}
	pt.dirty = 0
}

// ring wakes a vector of a peer if it sleeps. If several goroutines call it, one rings. by belongs to the caller, for
// the warden.
func (d *Device) ring(by *ringing, t *target) {
	if t.armed.Load() == 1 && t.armed.CompareAndSwap(1, 0) {
		d.counters.bellsSent.Add(1)
		by.at.Store(t)
		ringBell(t.bell)
		by.at.Store(nil)
		return
	}
	d.counters.bellsSuppressed.Add(1)
}
