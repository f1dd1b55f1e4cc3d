package peers

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
)

// peerBookLimit bounds what is kept of peers besides the maps of the programs.
const peerBookLimit = 16384

// Book is what the gateway itself remembers of peers: who has answered as
// a gateway, with which carriers, and how often in a row a peer has refused,
// for the back-off. What the decision on new connections needs lies in the
// maps of the programs.
type Book struct {
	mu      sync.Mutex // guards everything below
	strikes map[strikeKey]negotiate.Strike
	struck  map[netip.Addr][]uint16 // the ports of strikes
	capable map[netip.Addr]map[config.Carrier]struct{}
}

type strikeKey struct {
	addr netip.Addr
	port uint16
}

// NewBook returns an empty book.
func NewBook() *Book {
	return &Book{
		strikes: map[strikeKey]negotiate.Strike{},
		struck:  map[netip.Addr][]uint16{},
		capable: map[netip.Addr]map[config.Carrier]struct{}{},
	}
}

// Strike records that a peer refused and returns for how long it counts.
func (b *Book) Strike(a netip.Addr, port uint16, r negotiate.Reason, p negotiate.CachePolicy, now time.Time) negotiate.Strike {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := strikeKey{a, port}
	if len(b.strikes) >= peerBookLimit {
		b.expire(now)
	}
	prev, known := b.strikes[k]
	if !known {
		b.struck[a] = append(b.struck[a], port)
	}
	s := p.Next(prev, r, now)
	b.strikes[k] = s
	return s
}

// dropLocked forgets one strike.
func (b *Book) dropLocked(k strikeKey) {
	delete(b.strikes, k)
	ports := slices.DeleteFunc(b.struck[k.addr], func(p uint16) bool { return p == k.port })
	if len(ports) == 0 {
		delete(b.struck, k.addr)
		return
	}
	b.struck[k.addr] = ports
}

// Contradicted forgets the strikes that a carried connection with a peer, begun after
// them, shows to be out of date, and returns the ports of those that have effect. The
// port is that of the server the connection is to, 0 if it comes from the peer.
func (b *Book) Contradicted(a netip.Addr, port uint16, began time.Time, p negotiate.CachePolicy) (ports []uint16) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, struck := range slices.Clone(b.struck[a]) {
		k := strikeKey{a, struck}
		s := b.strikes[k]
		if began.Before(s.Until.Add(-s.TTL)) || !p.Undone(s.Reason, struck == port && port != 0) {
			continue
		}
		if s.Active(began) {
			ports = append(ports, struck)
		}
		b.dropLocked(k)
	}
	return ports
}

// expire drops strikes without effect, and if that is not enough, any, until an
// eighth is free: it walks all of them, and must not have to every time.
func (b *Book) expire(now time.Time) {
	for k, s := range b.strikes {
		if !s.Active(now) {
			b.dropLocked(k)
		}
	}
	for k := range b.strikes {
		if len(b.strikes) <= peerBookLimit-peerBookLimit/8 {
			return
		}
		b.dropLocked(k)
	}
}

// Proven records that a carrier works with a peer.
func (b *Book) Proven(a netip.Addr, c config.Carrier) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.capable[a]
	if m == nil {
		if len(b.capable) >= peerBookLimit {
			clear(b.capable)
		}
		m = map[config.Carrier]struct{}{}
		b.capable[a] = m
	}
	m[c] = struct{}{}
}

// Carriers returns what has been proven with each peer.
func (b *Book) Carriers() map[netip.Addr][]config.Carrier {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[netip.Addr][]config.Carrier, len(b.capable))
	for a, m := range b.capable {
		for _, c := range config.Carriers() {
			if _, ok := m[c]; ok {
				out[a] = append(out[a], c)
			}
		}
	}
	return out
}

// Flush forgets every strike.
func (b *Book) Flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.strikes)
	clear(b.struck)
}

// Forget drops the strikes of one key of the cache.
func (b *Book) Forget(a netip.Addr, port uint16) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropLocked(strikeKey{a, port})
}
