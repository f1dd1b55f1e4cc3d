package farpeer

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/verbs"
)

// warmFor is how long a proof holds: a path can stop to carry UDP at any time.
const warmFor = 10 * time.Second

// Peer is what is known of a peer over a network. Its methods may be called from any
// goroutine.
type Peer struct {
	Remote netip.Addr

	warm    loop.Instant // until when a proof holds, zero when a queue pair has failed since
	warmLen atomic.Int64 // the length of the packets of that proof
	path    path
	mixed   atomic.Bool // the devices of the last link were of both kinds
	keepalive
}

// New returns a peer of which nothing is known.
func New(remote netip.Addr) *Peer { return &Peer{Remote: remote, keepalive: newKeepalive()} }

// Warm reports whether a proof holds for packets of a length.
func (p *Peer) Warm(packet int) bool {
	return time.Now().Before(p.warm.Load()) && int64(packet) <= p.warmLen.Load()
}

// Proved takes note that packets of a length have come back.
func (p *Peer) Proved(packet int) {
	p.warmLen.Store(int64(packet))
	p.warm.Store(time.Now().Add(warmFor))
}

// Unproved takes note that full packets have not come back.
func (p *Peer) Unproved() { p.path.unproved(time.Now()) }

// Void ends what was proved.
func (p *Peer) Void() { p.warm.Store(time.Time{}) }

// MTU is the path MTU for a new queue pair between a device and the peer.
func (p *Peer) MTU(device verbs.MTU) verbs.MTU { return p.path.mtu(device, p.Remote, time.Now()) }

// Meets takes note of the device at the other end of a link. What was proved with one of
// the other kind is proved no more.
func (p *Peer) Meets(mixed bool) {
	if p.mixed.Swap(mixed) != mixed {
		p.Void()
	}
}

// Mixed reports whether the devices of the last link were of both kinds.
func (p *Peer) Mixed() bool { return p.mixed.Load() }
