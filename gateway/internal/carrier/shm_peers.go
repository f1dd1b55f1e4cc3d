package carrier

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

// PeerFor returns the peer offered to a server address, or makes the offer. hold counts a
// user more, whose end Leave counts.
func (sf *Shm) PeerFor(a netip.Addr, hold bool) (*ShmPeer, error) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	if sf.env.Peers.Elsewhere(a, time.Now()) {
		return nil, ErrNotHere
	}
	p := sf.offers[a]
	if p == nil || p.Err() != nil {
		sf.dropPendingLocked()
		sf.makeRoomLocked(a)
		peer, err := sf.shm.Offer()
		if err != nil {
			return nil, fmt.Errorf("shm offer: %w", err)
		}
		p = sf.adoptLocked(peer, a)
		sf.offers[a] = p
	}
	if hold {
		p.users++
	}
	return p, nil
}

// OffersAtOnce implements Prompt: the offer to the address is there, or none is made.
func (sf *Shm) OffersAtOnce(r *Request) bool {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	p := sf.offers[r.peer()]
	return p != nil && p.Err() == nil || sf.env.Peers.Elsewhere(r.peer(), time.Now())
}

// dropPendingLocked makes room when too many servers have never come: the oldest offer
// goes. Offers in use stay: a server may be reading them just now.
func (sf *Shm) dropPendingLocked() {
	pending := 0
	for _, p := range sf.offers {
		if !p.Connected() {
			pending++
		}
	}
	if pending < pendingLimit {
		return
	}
	if p := sf.longestIdleLocked(func(p *ShmPeer) bool { return !p.Connected() }); p != nil {
		sf.dropLocked(p)
	}
}

// makeRoomLocked sends an idle peer away if there are as many as there may be.
func (sf *Shm) makeRoomLocked(a netip.Addr) {
	if len(sf.peers) < shmPeersLimit {
		return
	}
	if p := sf.longestIdleLocked(func(*ShmPeer) bool { return true }); p != nil {
		sf.env.Log.Debug("shm peer makes room", "peer", p.String(), "for", a)
		sf.dropLocked(p)
	}
}

func (sf *Shm) longestIdleLocked(among func(*ShmPeer) bool) (found *ShmPeer) {
	for _, p := range sf.peers {
		if p.users == 0 && among(p) && (found == nil || p.idle.Before(found.idle)) {
			found = p
		}
	}
	return found
}

// dropLocked hangs up, or withdraws an offer.
func (sf *Shm) dropLocked(p *ShmPeer) {
	delete(sf.peers, p.Peer)
	for a, o := range sf.offers {
		if o == p {
			delete(sf.offers, a)
		}
	}
	_ = p.Close()
	p.reap()
}

// admitLocked decides whether an address may have one peer more: it has its share
// of them, those that are being attached to included. An idle one of its own makes room.
func (sf *Shm) admitLocked(a netip.Addr) error {
	n := 0
	for _, p := range sf.peers {
		if p.Of == a {
			n++
		}
	}
	for _, c := range sf.calls {
		if c.of == a {
			n++
		}
	}
	if n >= sf.env.Config.Limits.PeerShare.Of(shmPeersLimit) {
		own := sf.longestIdleLocked(func(p *ShmPeer) bool { return p.Of == a })
		if own == nil {
			sf.env.Peers.Refuse(peers.ResourceShmPeers)
			return fmt.Errorf("%d shm peers of %v: %w", n, a, verbs.ErrNoMemory)
		}
		sf.dropLocked(own)
	}
	sf.makeRoomLocked(a)
	return nil
}

func (sf *Shm) adoptLocked(peer *shm.Peer, of netip.Addr) *ShmPeer {
	p := sf.peers[peer]
	if p == nil {
		p = &ShmPeer{Peer: peer, Fabric: sf, Of: of, arena: sf.env.Pool.ArenaOf(of, peer.PD()), idle: time.Now()}
		sf.peers[peer] = p
	}
	return p
}

// adopt enters a peer that has been attached to for an address.
func (sf *Shm) adopt(peer *shm.Peer, of netip.Addr, hold bool) *ShmPeer {
	sf.mu.Lock()
	p := sf.adoptLocked(peer, of)
	if hold {
		p.users++
	}
	sf.mu.Unlock()
	sf.env.Peers.Reached(of)
	if peer.Err() != nil {
		sf.peerDown(peer) // it went before it was entered
	}
	return p
}

// Peers returns those there are.
func (sf *Shm) Peers() []*ShmPeer {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	return slices.Collect(maps.Values(sf.peers))
}

// Hold is for one user more of a peer.
func (sf *Shm) Hold(p *ShmPeer) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	p.users++
}

// Leave is for one user less.
func (sf *Shm) Leave(p *ShmPeer) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	if p.users--; p.users == 0 {
		p.idle = time.Now()
	}
}

// Known returns the live peer of a key, whichever side made the offer, or nil.
func (sf *Shm) Known(key [16]byte) *ShmPeer {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	for _, p := range sf.peers {
		if p.Key() == key && p.Err() == nil {
			return p
		}
	}
	return nil
}

// Attach becomes the peer of an offer that was made to an address.
func (sf *Shm) Attach(ctx context.Context, of netip.Addr, name string, key [16]byte) (*ShmPeer, error) {
	if err := sf.call(of, key); err != nil {
		return nil, err
	}
	defer sf.called(key)
	peer, err := sf.shm.Attach(ctx, name, key)
	if err != nil {
		return nil, fmt.Errorf("shm attach: %w", err)
	}
	return sf.adopt(peer, of, false), nil
}

// call begins to attach to an offer, which called ends. Flows that come with the same
// offer are one peer.
func (sf *Shm) call(of netip.Addr, key [16]byte) error {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	c := sf.calls[key]
	if c == nil {
		if err := sf.admitLocked(of); err != nil {
			return err
		}
		c = &call{of: of}
		sf.calls[key] = c
	}
	c.flows++
	return nil
}

func (sf *Shm) called(key [16]byte) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	c := sf.calls[key]
	if c.flows--; c.flows == 0 {
		delete(sf.calls, key)
	}
}

// reap gives the memory of a peer that is down back to the pool and to the
// kernel. Until the last flow has released its part it does nothing.
func (p *ShmPeer) reap() {
	if p.Err() != nil {
		_ = p.arena.Close()
	}
}

// peerDown is called by the device when a peer has hung up: its gateway is
// dead, and every flow it carried ends now.
func (sf *Shm) peerDown(peer *shm.Peer) {
	sf.mu.Lock()
	sp := sf.peers[peer]
	delete(sf.peers, peer)
	for a, p := range sf.offers {
		if p.Peer == peer {
			delete(sf.offers, a)
		}
	}
	sf.mu.Unlock()
	sf.env.PeerDown(peer)
	if sp != nil {
		sp.reap()
	}
}
