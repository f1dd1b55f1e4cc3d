package shm

// Reuse of memory that the peer can write to.
//
// A queue pair block or the range of a memory region that is closed here may still be in use by the peer's loops: a
// copy may be in progress, or a span of MapRemote be held. So it waits for a grace period, as in RCU. The closer first
// makes the object unreachable (invalid table entry, dead status, news for the connected queue pair). Then the epoch is
// advanced, and every driven vector of the peer acknowledges the epoch in Progress, after it has looked at all ready
// bits. Spans do not outlive a Progress, so nothing older is in use then.
//
// A peer that does not acknowledge (a stopped one) keeps the memory in quarantine, which the quota of the peer bounds.
// If it is down, all memory is released immediately: the ranges of regions to the system, the rest with the mapping.
// Its own loops may not have noticed yet; they still look at the blocks and receive what was sent before.

// reclaimed is something to reuse after a grace period.
type reclaimed struct {
	off  uint64
	size uint64
	log2 uint8  // ring of a queue pair block, 0 for other ranges
	slot uint32 // queue pair slot to free, 0 for none
	fn   func() // callback of AfterGrace
}

type grace struct {
	epoch   uint64
	rung    bool        // sleeping vectors have been woken for it
	current []reclaimed // wait for epoch
	next    []reclaimed // wait for the epoch after
	bytes   uint64
	busy    bool // current is not empty
}

// AfterGrace calls fn when the peer can no longer be using anything that was unreachable for it before this call: every
// driven vector of the peer has passed a Progress since, or the peer is down, or no peer has attached yet. It is for
// memory that is reused without closing its region, such as parts of a slab. fn runs once, in a goroutine of the
// device, or in the caller's if the peer is already down; it must not block.
func (p *Peer) AfterGrace(fn func()) {
	p.mu.Lock()
	if p.err != nil {
		p.mu.Unlock()
		fn()
		return
	}
	defer p.mu.Unlock()
	p.retireLocked(reclaimed{fn: fn})
}

// retireLocked queues r for reuse after a grace period.
func (p *Peer) retireLocked(r reclaimed) {
	p.grace.bytes += r.size
	p.grace.next = append(p.grace.next, r)
	p.turnGraceLocked()
}

// turnGraceLocked ends the grace period if the peer has acknowledged it, and begins the next one if something waits for
// it.
func (p *Peer) turnGraceLocked() {
	g := &p.grace
	if len(g.current) > 0 && p.acknowledgedLocked(g.epoch) {
		g.current = p.recycleLocked(g.current)
	}
	if p.err != nil {
		g.next = p.recycleLocked(g.next)
	}
	if len(g.current) == 0 && len(g.next) > 0 {
		g.current, g.next = g.next, g.current
		g.epoch++
		p.epochWord.Store(g.epoch)
		g.rung = false // a loop that is awake sees it; the janitor wakes the others
	}
	busy := len(g.current) > 0
	if busy && !g.busy {
		p.dev.janitor.watch()
	}
	g.busy = busy
}

// acknowledgedLocked reports whether every driven vector of the peer has acknowledged the epoch. A vector that is
// driven later starts with the current epoch.
func (p *Peer) acknowledgedLocked(epoch uint64) bool {
	if p.err != nil {
		return true
	}
	for i := range p.targets {
		if p.targets[i].driven.Load() != 0 && p.acks[i].Load() < epoch {
			return false
		}
	}
	return true
}

// recycleLocked releases everything in a list and returns it empty.
func (p *Peer) recycleLocked(list []reclaimed) []reclaimed {
	for _, r := range list {
		p.grace.bytes -= r.size
		if r.slot != 0 {
			p.dev.slots.put(r.slot)
		}
		if r.fn != nil {
			p.dev.janitor.post(r.fn)
		}
		switch {
		case r.size == 0:
		case r.log2 != 0:
			p.giveBlockLocked(r.off, r.log2)
		default:
			p.freeLocked(r.off, r.size)
		}
	}
	clear(list)
	return list[:0]
}

// wake rings every sleeping vector of the peer. The janitor calls it without locks: a peer can make a ring block
// (warden.go).
func (p *Peer) wake() {
	defer p.unref()
	for i := range p.targets {
		p.dev.ring(&p.dev.janitor.ringing, &p.targets[i])
	}
}

// pollGrace ends a grace period even if no allocation or release does. It reports whether one is still in progress, and
// whether the peer was woken for it just now.
func (p *Peer) pollGrace() (busy, fresh bool) {
	busy, fresh = p.lookGrace()
	if fresh {
		p.wake()
	}
	return busy, fresh
}

// lookGrace is pollGrace without waking; if the peer must be woken, it has taken a reference for that.
func (p *Peer) lookGrace() (busy, fresh bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refs == 0 || !p.grace.busy {
		return false, false
	}
	p.turnGraceLocked()
	if fresh = p.grace.busy && !p.grace.rung; fresh {
		p.grace.rung = true
		p.refs++
	}
	return p.grace.busy, fresh
}
