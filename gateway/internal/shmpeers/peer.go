package shmpeers

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs/shm"
)

// Peer is a peer with the memory its links come from.
type Peer struct {
	*shm.Peer
	Of    netip.Addr // the address that it was met for
	Arena *rmb.Arena
	Warm  atomic.Bool // a probe has come back: memory and doorbells work both ways

	users int       // flows and datagram ports; guarded by Table.mu
	idle  time.Time // since when there are none; the same
	cold  bool      // no later flow is offered it
}

// Reap gives the memory of a peer that is down back to the pool and to the
// kernel. Until the last flow has released its part it does nothing.
func (p *Peer) Reap() {
	if p.Err() != nil {
		_ = p.Arena.Close()
	}
}
