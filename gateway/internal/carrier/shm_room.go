package carrier

import (
	"fmt"
	"net/netip"

	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/verbs"
)

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
