package shmpeers

import (
	"fmt"
	"net/netip"

	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/verbs"
)

// dropPendingLocked makes room when too many servers have never come: the oldest offer
// goes. Offers in use stay: a server may be reading them just now.
func (t *Table) dropPendingLocked() {
	pending := func(p *Peer) bool { return !p.Connected() }
	if p := t.longestIdleLocked(pending); p != nil && t.countLocked(pending) >= pendingLimit {
		t.dropLocked(p)
	}
}

// makeRoomLocked sends an idle peer away if there are as many as there may be, those that are
// being attached to included.
func (t *Table) makeRoomLocked(a netip.Addr) error {
	if len(t.peers)+len(t.calls) < peersLimit {
		return nil
	}
	p := t.longestIdleLocked(func(*Peer) bool { return true })
	if p == nil {
		return fmt.Errorf("%d shm peers in use: %w", len(t.peers), verbs.ErrNoMemory)
	}
	t.env.Log.Debug("shm peer makes room", "peer", p.String(), "for", a)
	t.dropLocked(p)
	return nil
}

func (t *Table) longestIdleLocked(among func(*Peer) bool) (found *Peer) {
	for _, p := range t.peers {
		if p.users == 0 && among(p) && (found == nil || p.idle.Before(found.idle)) {
			found = p
		}
	}
	return found
}

// dropLocked hangs up, or withdraws an offer.
func (t *Table) dropLocked(p *Peer) {
	t.forgetLocked(p.Peer)
	_ = p.Close()
	p.Reap()
}

// admitLocked decides whether an address may have one peer more: it has its share
// of them, those that are being attached to included. An idle one of its own makes room.
func (t *Table) admitLocked(a netip.Addr) error {
	of := func(p *Peer) bool { return p.Of == a }
	n := t.countLocked(of)
	for _, c := range t.calls {
		if c.of == a {
			n++
		}
	}
	if n >= t.env.Config.Limits.PeerShare.Of(peersLimit) {
		own := t.longestIdleLocked(of)
		if own == nil {
			t.env.Peers.Refuse(peers.ResourceShmPeers)
			return fmt.Errorf("%d shm peers of %v: %w", n, a, verbs.ErrNoMemory)
		}
		t.dropLocked(own)
	}
	return t.makeRoomLocked(a)
}
