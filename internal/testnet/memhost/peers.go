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

// optionPassed forgets the eaten options of a destination.
func (m *Model) optionPassed(t ebpf.Tuple) {
	k := peerKey{addr: t.Remote.Addr()}
	if p := m.peers[k]; p != nil && p.reason == ebpf.ReasonOptionBlackholed {
		delete(m.peers, k)
	}
}

// optionEaten counts a connection that came up only after the bare retry. The
// count stays when a blackhole ends, so the next eaten option renews it at once,
// for twice as long.
func (m *Model) optionEaten(t ebpf.Tuple) {
	k, now := peerKey{addr: t.Remote.Addr()}, m.now()
	p := peer{reason: ebpf.ReasonOptionBlackholed}
	if old := m.peers[k]; old != nil {
		if old.reason != ebpf.ReasonOptionBlackholed && old.until > now {
			return
		}
		if old.reason == ebpf.ReasonOptionBlackholed {
			p.count, p.backoff = old.count, old.backoff
		}
	}
	p.count++
	if p.count >= m.cfg.BlackholeAfter {
		p.until = now + m.cfg.Retry<<(p.backoff&7)
		p.backoff = min(p.backoff+1, 5) // 32 times as long at most
	}
	m.putPeerLocked(k, p)
}

// Peers implements gateway.Steering.
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

// Forget implements gateway.Steering.
func (m *Model) Forget(addr netip.Addr, port uint16) error {
	return m.change(func() { delete(m.peers, peerKey{addr.Unmap(), port}) })
}

// FlushPeers implements gateway.Steering.
func (m *Model) FlushPeers() (int, error) {
	n := 0
	err := m.change(func() {
		n = len(m.peers)
		clear(m.peers)
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
