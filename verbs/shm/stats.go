package shm

import "sync/atomic"

// counters count events of the whole device.
type counters struct {
	bellsSent       atomic.Uint64
	bellsSuppressed atomic.Uint64
	violations      atomic.Uint64
	peersUp         atomic.Uint64
	peersDown       atomic.Uint64
	refused         atomic.Uint64
	dropped         atomic.Uint64
}

// Stats is a snapshot of a device's counters.
type Stats struct {
	Peers           int    // live
	QPs             int    // existing, including those not yet acknowledged as closed
	BellsSent       uint64 // doorbells rung
	BellsSuppressed uint64 // doorbells not needed: the peer's loop was awake
	Violations      uint64 // peers ended because of what they wrote
	PeersUp         uint64 // peers ever connected
	PeersDown       uint64 // peers ever lost
	Refused         uint64 // rendezvous refused by this side
	Dropped         uint64 // messages of unreliable queue pairs dropped here, sent or received
}

// Stats returns a snapshot.
func (d *Device) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Stats{
		Peers:           len(d.peers),
		QPs:             d.slots.inUse(),
		BellsSent:       d.counters.bellsSent.Load(),
		BellsSuppressed: d.counters.bellsSuppressed.Load(),
		Violations:      d.counters.violations.Load(),
		PeersUp:         d.counters.peersUp.Load(),
		PeersDown:       d.counters.peersDown.Load(),
		Refused:         d.counters.refused.Load(),
		Dropped:         d.counters.dropped.Load(),
	}
}

// PeerStats is a snapshot of the memory of one peer.
type PeerStats struct {
	UsedBytes        uint64 // allocated, including quarantine and memory not yet returned to the system
	QuarantinedBytes uint64 // freed here, not yet acknowledged by the peer
}

// Stats returns a snapshot.
func (p *Peer) Stats() PeerStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turnGraceLocked()
	return PeerStats{UsedBytes: p.arena.used - p.warmBytesLocked(), QuarantinedBytes: p.grace.bytes}
}
