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

// warmFor is how long a proof holds: a path can stop to carry UDP at any time.
const warmFor = 10 * time.Second

// farPeer is a peer over a network: what is known of its path and of its gateway's life, its
// domain on one device, and the memory its links come from. The device guards users and
// idle; any goroutine may call the methods, but for close.
type farPeer struct {
	remote netip.Addr
	pd     verbs.PD
	arena  *rmb.Arena

	users int       // connections that have a queue pair, or bytes to be sent again
	idle  time.Time // since when there are none

	warmUntil loop.Instant // until when a proof holds, zero when a queue pair has failed since
	warmLen   atomic.Int64 // the length of the packets of that proof
	path      pathMTU
	mixed     atomic.Bool // the devices of the last link were of both kinds
	keepalive
}

// newFarPeer makes a peer with a domain, of which nothing else is known.
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

// isWarm reports whether a proof holds for packets of a length.
func (p *farPeer) isWarm(packet int) bool {
	return time.Now().Before(p.warmUntil.Load()) && int64(packet) <= p.warmLen.Load()
}

// noteProved takes note that packets of a length have come back.
func (p *farPeer) noteProved(packet int) {
	p.warmLen.Store(int64(packet))
	p.warmUntil.Store(time.Now().Add(warmFor))
}

// noteUnproved takes note that full packets have not come back.
func (p *farPeer) noteUnproved() { p.path.unproved(time.Now()) }

// void ends what was proved.
func (p *farPeer) void() { p.warmUntil.Store(time.Time{}) }

// mtuFrom is the path MTU for a new queue pair between a device and the peer.
func (p *farPeer) mtuFrom(device verbs.MTU) verbs.MTU {
	return p.path.mtu(device, p.remote, time.Now())
}

// meets takes note of the device at the other end of a link. What was proved with one of
// the other kind is proved no more.
func (p *farPeer) meets(mixed bool) {
	if p.mixed.Swap(mixed) != mixed {
		p.void()
	}
}

// close frees the memory and the domain.
func (p *farPeer) close() error { return errors.Join(p.arena.Close(), p.pd.Close()) }
