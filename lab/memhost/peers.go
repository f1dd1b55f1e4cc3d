package memhost

import (
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/ebpf"
)

// peerKey names a remembered peer; port 0 is the whole address.
type peerKey struct {
	addr netip.Addr
	port uint16
}

// peer is what is remembered: left alone until then.
type peer struct {
	until          time.Duration
	count, backoff int
	reason         uint8
}

// putPeerLocked stores p; a full table forgets some other.
func (m *Model) putPeerLocked(k peerKey, p peer) {
	if _, known := m.peers[k]; !known && len(m.peers) >= m.cfg.MaxPeers {
		for other := range m.peers {
			delete(m.peers, other)
			break
		}
	}
	m.peers[k] = &p
}

// remembered returns why a peer is left alone now, or 0.
func (m *Model) remembered(t ebpf.Tuple) uint8 {
	now := m.now()
	for _, port := range []uint16{0, t.Remote.Port()} {
		if p := m.peers[peerKey{t.Remote.Addr(), port}]; p != nil && p.until > now {
			return p.reason
		}
	}
	return 0
}

// aboutOffers: what became of SYNs with the option on the way to an address.
func aboutOffers(reason uint8) bool {
	return reason == ebpf.ReasonOptionBlackholed || reason == ebpf.ReasonOfferUnanswered
}

// optionPassed: a SYN with the option was answered by its destination.
func (m *Model) optionPassed(t ebpf.Tuple) {
	k := peerKey{addr: t.Remote.Addr()}
	if p := m.peers[k]; p != nil && aboutOffers(p.reason) {
		delete(m.peers, k)
	}
	if len(m.passed) >= m.cfg.MaxPeers {
		clear(m.passed)
	}
	m.passed[k.addr] = struct{}{}
}

// How a host that has answered offers rests when it does not, as in peers.h.
const (
	unansweredRest  = 5 * time.Second
	unansweredRests = 5
	maxDoublings    = 15
)

// optionEaten counts a connection that came up only after the bare retry, and
// returns why. The count stays when a rest ends, so the next one renews it at
// once, for twice as long.
func (m *Model) optionEaten(t ebpf.Tuple) uint8 {
	k, now := peerKey{addr: t.Remote.Addr()}, m.now()
	_, passed := m.passed[k.addr]
	p, old := peer{reason: ebpf.ReasonOptionBlackholed}, m.peers[k]
	if old != nil && aboutOffers(old.reason) {
		p.count, p.backoff = old.count, old.backoff
	}
	first := m.cfg.Retry
	if passed {
		first = min(first, unansweredRest)
		if p.backoff < unansweredRests {
			p.reason = ebpf.ReasonOfferUnanswered
		}
	}
	if old != nil && old.until > now {
		return p.reason
	}
	p.count++
	if p.count >= m.cfg.BlackholeAfter {
		most := m.cfg.Retry << 5
		if first > most>>p.backoff {
			first = most >> p.backoff
		}
		p.until = now + first<<p.backoff
		p.backoff = min(p.backoff+1, maxDoublings)
	}
	m.putPeerLocked(k, p)
	return p.reason
}

// Peers implements host.Steering.
func (m *Model) Peers() ([]ebpf.Peer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []ebpf.Peer
	now := m.now()
	for k, p := range m.peers {
		e := ebpf.Peer{Addr: k.addr, Port: k.port, Reason: p.reason, Count: p.count, Backoff: p.backoff}
		e.TTL = max(0, p.until-now)
		if e.TTL > 0 || e.Count > 0 {
			out = append(out, e)
		}
	}
	return out, nil
}

// Forget implements host.Steering.
func (m *Model) Forget(addr netip.Addr, port uint16) error {
	return m.change(func() { delete(m.peers, peerKey{addr.Unmap(), port}) })
}

// FlushPeers implements host.Steering.
func (m *Model) FlushPeers() (int, error) {
	n := 0
	err := m.change(func() {
		n = len(m.peers)
		clear(m.peers)
		clear(m.passed)
	})
	return n, err
}

// oddAddress: destinations that are never another host: this host, loopback,
// multicast, IPv6 link-local.
func (m *Model) oddAddress(a netip.Addr) bool {
	if a.Is4() {
		b := a.As4()
		return b[0] == 127 || b[0] == 0 || b[0] >= 224 || a == m.host.v4
	}
	return a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsUnspecified() || a.IsLoopback() || a == m.host.v6
}
