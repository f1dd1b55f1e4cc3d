package shm

// orphan is the block of a queue pair that was closed before it belonged to the loop, but had already been claimed by a
// queue pair of the peer.
type orphan struct {
	peer  *Peer
	claim uint64
	block reclaimed
}

// retire passes the memory to the grace period.
func (o *orphan) retire() {
	o.peer.mu.Lock()
	defer o.peer.mu.Unlock()
	o.peer.retireLocked(o.block)
}

// leave passes o to the loop, with a reference to the peer.
func (v *vector) leave(o orphan) {
	o.peer.mu.Lock()
	o.peer.refs++
	o.peer.mu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.orphans = append(v.orphans, o)
	v.hasOrphans.Store(true)
	if v.kick >= 0 {
		ringBell(v.kick)
	}
}

// adoptOrphans tells claimants and retires blocks, which only the loop may do.
func (v *vector) adoptOrphans() bool {
	if !v.hasOrphans.Load() {
		return false
	}
	for _, o := range v.takeOrphans() {
		if pt := v.portOf(o.peer); pt != nil {
			pt.tellClaimant(o.claim)
		}
		o.retire()
		o.peer.unref()
	}
	return true
}

func (v *vector) takeOrphans() []orphan {
	v.mu.Lock()
	defer v.mu.Unlock()
	os := v.orphans
	v.orphans = nil
	v.hasOrphans.Store(false)
	return os
}

// tellClaimant tells a queue pair of the peer that the queue pair of ours that it claimed is dead.
func (pt *port) tellClaimant(claim uint64) {
	if claim > 0xffffff || pt.peer.down.Load() {
		return
	}
	e, found := pt.peer.findQP(uint32(claim))
	if !found {
		return
	}
	pt.peer.rem.block(e.off).news.Or(newsStatus)
	pt.notify(e.vector, slotOf(uint32(claim)))
}
