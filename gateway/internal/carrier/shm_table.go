package carrier

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

const (
	// shmPeersLimit bounds the peers: each has tables and doorbells and is polled by every
	// loop. At the limit, the peer that has been without flows longest makes room. The device
	// has room for twice as many, to hold dropped peers that have not gone yet.
	shmPeersLimit = 256
	// shmPendingLimit bounds the offers that no peer has taken yet.
	shmPendingLimit = 64
	// shmFormerLimit bounds the replaced gateways of one address that still serve flows: an
	// upgrade leaves one, and a server that merely claims to be a new gateway gets no more.
	shmFormerLimit = 4
)

// shmTable holds the gateways under this kernel that share memory with this one, and counts the
// flows and datagram ports that use each. Connections and datagrams share the same peers, so
// neither decides alone which of them make room. Its methods may be called from any goroutine.
//
// A client meets its peers by an offer: memory and key exist before the server is known, so that
// the first PROPOSAL can already name its queue pair. The offer is kept per server address and
// serves every later flow to it. A server attaches to the offer that names it.
//
//	PeerFor ──► offered ── a server attaches ──┐
//	Attach  ──────────────────────────────────►┴► in use, idle ── close, hang-up ──► down
type shmTable struct {
	env *Env
	shm *shm.Device

	mu     sync.Mutex // guards everything below
	offers map[netip.Addr]*ShmPeer
	peers  map[*shm.Peer]*ShmPeer
	calls  map[[16]byte]*shmCall // by key: offers being attached to
}

// openShmTable opens the device with its table of peers. The caller closes the device and
// then frees the table.
func openShmTable(env *Env) (*shmTable, error) {
	t := &shmTable{
		env: env, offers: map[netip.Addr]*ShmPeer{}, peers: map[*shm.Peer]*ShmPeer{}, calls: map[[16]byte]*shmCall{},
	}
	dev, err := shm.Open(shm.Config{
		Dir: env.Config.ShmDir, GatewayID: env.GatewayID, Vectors: len(env.Shards),
		PeerQuota: min(uint64(env.Config.Limits.Memory), shm.MaxPeerQuota), MaxPeers: 2 * shmPeersLimit, OnPeerDown: t.peerDown, Logger: env.Log,
	})
	if err != nil {
		return nil, err
	}
	t.shm = dev
	if _, err := dev.Listen(); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return t, nil
}

// PeerFor returns the peer offered to a server address, making the offer if needed. With hold
// it counts one more user, which Leave uncounts.
func (t *shmTable) PeerFor(a netip.Addr, hold bool) (*ShmPeer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.offers[a]
	if p == nil || p.Err() != nil || t.env.Peers.Elsewhere(a, time.Now()) {
		var err error
		if p, err = t.offerLocked(a); err != nil {
			return nil, err
		}
		t.offers[a] = p
	}
	if hold {
		p.users++
	}
	return p, nil
}

// coldPeerFor makes an offer for a single user; the peer is dropped with it.
func (t *shmTable) coldPeerFor(a netip.Addr) (*ShmPeer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.offerLocked(a)
	if err == nil {
		p.users, p.cold = 1, true
	}
	return p, err
}

func (t *shmTable) offerLocked(a netip.Addr) (*ShmPeer, error) {
	if t.env.Peers.Elsewhere(a, time.Now()) {
		return nil, ErrNotHere
	}
	t.dropPendingLocked()
	if err := t.makeRoomLocked(a); err != nil {
		return nil, err
	}
	peer, err := t.shm.Offer()
	if err != nil {
		return nil, fmt.Errorf("shm offer: %w", err)
	}
	return t.adoptLocked(peer, a), nil
}

// ready reports whether PeerFor would not block: the address has an offer already, or none
// would be made.
func (t *shmTable) ready(a netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.offers[a]
	return p != nil && p.Err() == nil || t.env.Peers.Elsewhere(a, time.Now())
}

// replaced forgets the offer taken by p, which continues to serve its flows.
func (t *shmTable) replaced(p *ShmPeer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.offers[p.Of] == p && t.countLocked(func(o *ShmPeer) bool { return o.Of == p.Of }) <= shmFormerLimit {
		delete(t.offers, p.Of)
	}
}

func (t *shmTable) countLocked(among func(*ShmPeer) bool) (n int) {
	for _, p := range t.peers {
		if among(p) {
			n++
		}
	}
	return n
}

func (t *shmTable) adoptLocked(peer *shm.Peer, of netip.Addr) *ShmPeer {
	p := t.peers[peer]
	if p == nil {
		p = &ShmPeer{Peer: peer, Of: of, arena: t.env.Pool.ArenaOf(of, peer.PD()), idle: time.Now()}
		t.peers[peer] = p
	}
	return p
}

// adopt enters a peer that was attached to for an address.
func (t *shmTable) adopt(peer *shm.Peer, of netip.Addr, hold bool) *ShmPeer {
	t.mu.Lock()
	p := t.adoptLocked(peer, of)
	if hold {
		p.users++
	}
	t.mu.Unlock()
	t.env.Peers.Reached(of)
	if peer.Err() != nil {
		t.peerDown(peer) // it went down before it was entered
	}
	return p
}

// Peers returns all peers.
func (t *shmTable) Peers() []*ShmPeer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.peers))
}

// Hold adds a user of a peer.
func (t *shmTable) Hold(p *ShmPeer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.users++
}

// Leave removes a user of a peer.
func (t *shmTable) Leave(p *ShmPeer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.users--; p.users > 0 {
		return
	}
	if p.idle = time.Now(); p.cold {
		t.dropLocked(p)
	}
}

// Known returns the live peer with this key, whichever side made the offer, or nil.
func (t *shmTable) Known(key [16]byte) *ShmPeer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.knownLocked(key)
}

func (t *shmTable) knownLocked(key [16]byte) *ShmPeer {
	for _, p := range t.peers {
		if p.Key() == key && p.Err() == nil {
			return p
		}
	}
	return nil
}

// peerDown is called by the device when a peer has hung up: its gateway is dead, and every
// flow it carried ends now.
func (t *shmTable) peerDown(peer *shm.Peer) {
	t.mu.Lock()
	p := t.peers[peer]
	t.forgetLocked(peer)
	t.mu.Unlock()
	t.env.PeerDown(peer)
	if p != nil {
		p.reap()
	}
}

// forgetLocked removes a peer and its offer from the table.
func (t *shmTable) forgetLocked(peer *shm.Peer) {
	delete(t.peers, peer)
	maps.DeleteFunc(t.offers, func(_ netip.Addr, p *ShmPeer) bool { return p.Peer == peer })
}

// free frees the memory of offers that were never taken. The device must be closed.
func (t *shmTable) free() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.peers {
		p.reap()
	}
}

// ShmPeer is a gateway under this kernel, with the memory of its links.
type ShmPeer struct {
	*shm.Peer
	Of    netip.Addr // the address for which it was met
	arena *rmb.Arena
	warm  atomic.Bool // a probe has come back: memory and doorbells work both ways

	users int       // flows and datagram ports; guarded by shmTable.mu
	idle  time.Time // when users became 0; likewise
	cold  bool      // not offered to later flows
}

// reap returns the memory of a peer that is down to the pool and the kernel. It does nothing
// until the last flow has released its part, so everything that releases a part calls reap.
func (p *ShmPeer) reap() {
	if p.Err() != nil {
		_ = p.arena.Close()
	}
}

// dropPendingLocked makes room by withdrawing the oldest offer if too many servers have never
// attached. Offers in use stay, since a server may be reading them right now.
func (t *shmTable) dropPendingLocked() {
	pending := func(p *ShmPeer) bool { return !p.Connected() }
	if p := t.longestIdleLocked(pending); p != nil && t.countLocked(pending) >= shmPendingLimit {
		t.dropLocked(p)
	}
}

// makeRoomLocked drops the peer that has been idle longest if the limit is reached, counting
// those that are being attached to.
func (t *shmTable) makeRoomLocked(a netip.Addr) error {
	if len(t.peers)+len(t.calls) < shmPeersLimit {
		return nil
	}
	p := t.longestIdleLocked(func(*ShmPeer) bool { return true })
	if p == nil {
		return fmt.Errorf("%d shm peers in use: %w", len(t.peers), verbs.ErrNoMemory)
	}
	t.env.Log.Debug("shm peer makes room", "peer", p.String(), "for", a)
	t.dropLocked(p)
	return nil
}

func (t *shmTable) longestIdleLocked(among func(*ShmPeer) bool) (found *ShmPeer) {
	for _, p := range t.peers {
		if p.users == 0 && among(p) && (found == nil || p.idle.Before(found.idle)) {
			found = p
		}
	}
	return found
}

// dropLocked hangs up on a peer, or withdraws its offer.
func (t *shmTable) dropLocked(p *ShmPeer) {
	t.forgetLocked(p.Peer)
	_ = p.Close()
	p.reap()
}

// admitLocked decides whether an address may have one more peer. Its share counts those that
// are being attached to. If the share is used up, an idle peer of that address makes room.
func (t *shmTable) admitLocked(a netip.Addr) error {
	of := func(p *ShmPeer) bool { return p.Of == a }
	n := t.countLocked(of)
	for _, c := range t.calls {
		if c.of == a {
			n++
		}
	}
	if n >= t.env.Config.Limits.PeerShare.Of(shmPeersLimit) {
		own := t.longestIdleLocked(of)
		if own == nil {
			t.env.Peers.Refuse(peers.ResourceShmPeers)
			return fmt.Errorf("%d shm peers of %v: %w", n, a, verbs.ErrNoMemory)
		}
		t.dropLocked(own)
	}
	return t.makeRoomLocked(a)
}
