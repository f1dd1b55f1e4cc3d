package shm

// orphan is the block of a queue pair that was closed before it belonged to the
// loop, but was already claimed by a queue pair of the peer.
type orphan struct {
	peer  *Peer
	claim uint64
	block reclaimed
	stage reclaimed
}

// retire leaves the memory to the grace period.
func (o *orphan) retire() {
	o.peer.mu.Lock()
	defer o.peer.mu.Unlock()
	if o.stage.size > 0 {
		o.peer.retireLocked(o.stage)
	}
	o.peer.retireLocked(o.block)
}

// leave hands o to the loop, with a reference to the peer.
func (v *vector) leave(o orphan) {
	o.peer.mu.Lock()
	o.peer.refs++
	o.peer.mu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.orphans = append(v.orphans, o)
	v.hasHanded.Store(true)
	if v.kick >= 0 {
		ringBell(v.kick)
	}
}

// nudge has the loop run q. Any goroutine may call it.
func (v *vector) nudge(q *qp) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.nudged = append(v.nudged, q)
	v.hasHanded.Store(true)
	if v.kick >= 0 {
		ringBell(v.kick)
	}
}

// adoptOrphans does what the closers could not.
func (v *vector) adoptOrphans() bool {
	if !v.hasHanded.Load() {
		return false
	}
	os, nudged := v.takeHanded()
	for _, q := range nudged {
		v.schedule(q)
	}
	for _, o := range os {
		if pt := v.portOf(o.peer); pt != nil {
			pt.tellClaimant(o.claim)
		}
		o.retire()
		o.peer.unref()
	}
	return true
}

func (v *vector) takeHanded() ([]orphan, []*qp) {
	v.mu.Lock()
	defer v.mu.Unlock()
	os, nudged := v.orphans, v.nudged
	v.orphans, v.nudged = nil, nil
	v.hasHanded.Store(false)
	return os, nudged
}

// tellClaimant gives a queue pair of the peer that claimed one of ours the news
// that ours is dead.
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
