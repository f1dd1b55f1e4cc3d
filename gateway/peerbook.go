package gateway

import (
	"net/netip"
	"sync"
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

// peerBookLimit bounds what is kept of peers besides the maps of the programs.
const peerBookLimit = 16384

// peerBook is what the gateway itself remembers of peers: who has answered as
// a gateway, with which carriers, and how often in a row a peer has refused,
// for the back-off. What the decision on new connections needs lies in the
// maps of the programs.
type peerBook struct {
	mu      sync.Mutex // guards everything below
	strikes map[strikeKey]negotiate.Strike
	capable map[netip.Addr]map[Carrier]struct{}
}

type strikeKey struct {
	addr netip.Addr
	port uint16
}

func newPeerBook() *peerBook {
	return &peerBook{
		strikes: map[strikeKey]negotiate.Strike{},
		capable: map[netip.Addr]map[Carrier]struct{}{},
	}
}

// strike records that a peer refused and returns for how long it counts.
func (b *peerBook) strike(a netip.Addr, port uint16, r negotiate.Reason, p negotiate.CachePolicy, now time.Time) negotiate.Strike {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := strikeKey{a, port}
	if len(b.strikes) >= peerBookLimit {
		b.expire(now)
	}
	s := p.Next(b.strikes[k], r, now)
	b.strikes[k] = s
	return s
}

// expire drops strikes without effect, and if that is not enough, any, until an
// eighth is free: it walks all of them, and must not have to every time.
func (b *peerBook) expire(now time.Time) {
	for k, s := range b.strikes {
		if !s.Active(now) {
			delete(b.strikes, k)
		}
	}
	for k := range b.strikes {
		if len(b.strikes) <= peerBookLimit-peerBookLimit/8 {
			return
		}
		delete(b.strikes, k)
	}
}

// proven records that a carrier works with a peer.
func (b *peerBook) proven(a netip.Addr, c Carrier) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.capable[a]
	if m == nil {
		if len(b.capable) >= peerBookLimit {
			clear(b.capable)
		}
		m = map[Carrier]struct{}{}
		b.capable[a] = m
	}
	m[c] = struct{}{}
}

// carriers returns what has been proven with each peer.
func (b *peerBook) carriers() map[netip.Addr][]Carrier {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[netip.Addr][]Carrier, len(b.capable))
	for a, m := range b.capable {
		for _, c := range Carriers() {
			if _, ok := m[c]; ok {
				out[a] = append(out[a], c)
			}
		}
	}
	return out
}

// flush forgets every strike.
func (b *peerBook) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.strikes)
}
