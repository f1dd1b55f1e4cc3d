package carrier

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
)

// warmFor is how long a proof is valid: a path can stop carrying UDP at any time.
const warmFor = 10 * time.Second

// farPeer is a peer over a network: its path, the liveness of its gateway, its domain on one
// device, and the memory of its links. The device guards users and idle. Any goroutine may
// call the methods, except close.
type farPeer struct {
	remote netip.Addr
	pd     verbs.PD
	arena  *rmb.Arena

	users int       // connections that have a queue pair, or bytes to be retransmitted
	idle  time.Time // when users became 0

	warmUntil loop.Instant // until when the proof is valid; zero if a queue pair has failed since
	warmLen   atomic.Int64 // packet length of that proof
	path      pathMTU
	mixed     atomic.Bool // the last link joined devices of both kinds
	keepalive
}

// newFarPeer makes a peer with a domain; nothing else is known about it.
func newFarPeer(env *Env, dev verbs.Device, remote netip.Addr) (*farPeer, error) {
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, fmt.Errorf("protection domain: %w", err)
	}
	return &farPeer{
		remote: remote, pd: pd, arena: env.Pool.IsolatedArenaOf(remote.Unmap(), pd), keepalive: newKeepalive(),
	}, nil
}

func (p *farPeer) far() *farPeer { return p }

// farPeerOf returns the peer of a link.
func farPeerOf(l *Link) *farPeer { return l.peer.(interface{ far() *farPeer }).far() }

// isWarm reports whether a valid proof covers packets of this length.
func (p *farPeer) isWarm(packet int) bool {
	return time.Now().Before(p.warmUntil.Load()) && int64(packet) <= p.warmLen.Load()
}

// noteProved records that packets of this length have come back.
func (p *farPeer) noteProved(packet int) {
	p.warmLen.Store(int64(packet))
	p.warmUntil.Store(time.Now().Add(warmFor))
}

// noteUnproved records that full packets have not come back.
func (p *farPeer) noteUnproved() { p.path.unproved(time.Now()) }

// void invalidates the proof.
func (p *farPeer) void() { p.warmUntil.Store(time.Time{}) }

// mtuFrom returns the path MTU for a new queue pair between a device and the peer.
func (p *farPeer) mtuFrom(device verbs.MTU) verbs.MTU {
	return p.path.mtu(device, p.remote, time.Now())
}

// meets records the kind of device at the other end of a link. A change of kind invalidates
// the proof.
func (p *farPeer) meets(mixed bool) {
	if p.mixed.Swap(mixed) != mixed {
		p.void()
	}
}

// close frees the memory and the domain.
func (p *farPeer) close() error { return errors.Join(p.arena.Close(), p.pd.Close()) }
