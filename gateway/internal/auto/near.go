package auto

import (
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
)

const (
	// nearFor is how long the steering believes that a peer is under this kernel. It
	// forgets one earlier whose connections take too long to come up.
	nearFor = 24 * time.Hour
	// nearAgain is how often it is told, at most.
	nearAgain = 10 * time.Minute
)

// met is what is known of a peer.
type met struct {
	carrier config.Carrier // that its last connection came by
	told    time.Time      // the steering, that it is near
}

// Met takes in that a connection with a peer, of either side, is carried. Shared memory
// shows that the peer is under this kernel; it has been written to and read from.
func (b *Book) Met(peer netip.Addr, by config.Carrier, now time.Time) {
	if b == nil || by == config.CarrierRelay {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	ttl, tell := b.learner.meet(peer, by, now)
	if !tell {
		return
	}
	if err := b.steer.SetNear(peer, ttl); err != nil {
		b.log.Warn("tell which peers are near", "peer", peer, "error", err)
	}
}

// meet returns what the steering must be told: for how long the peer is near.
func (l *learner) meet(peer netip.Addr, by config.Carrier, now time.Time) (ttl time.Duration, tell bool) {
	m := l.peers[peer]
	if m == nil {
		if len(l.peers) >= l.limit {
			l.forgetPeers()
		}
		m = &met{}
		l.peers[peer] = m
	}
	was := m.carrier
	m.carrier = by
	switch {
	case by != config.CarrierShm:
		m.told = time.Time{}
		return 0, was == config.CarrierShm // another host has the address, or the memory cannot be shared any more
	case now.Sub(m.told) < nearAgain:
		return 0, false
	}
	m.told = now
	return nearFor, true
}

// forgetPeers forgets an eighth of them, by chance.
func (l *learner) forgetPeers() {
	left := l.limit - l.limit/8 - 1
	for a := range l.peers {
		if len(l.peers) <= left {
			return
		}
		delete(l.peers, a)
	}
}

// carrierOf is what the last connection with a peer was carried by.
func (l *learner) carrierOf(peer netip.Addr) config.Carrier {
	if m := l.peers[peer]; m != nil {
		return m.carrier
	}
	return config.CarrierNone
}
