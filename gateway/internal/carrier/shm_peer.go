package carrier

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs/shm"
)

// ShmPeer is a gateway under this kernel with the memory its links come from.
type ShmPeer struct {
	*shm.Peer
	Of    netip.Addr // the address that it was met for
	arena *rmb.Arena
	warm  atomic.Bool // a probe has come back: memory and doorbells work both ways

	users int       // flows and datagram ports; guarded by shmTable.mu
	idle  time.Time // since when there are none; the same
	cold  bool      // no later flow is offered it
}

// reap gives the memory of a peer that is down back to the pool and to the kernel. Until the
// last flow has released its part it does nothing: what releases a part calls reap.
func (p *ShmPeer) reap() {
	if p.Err() != nil {
		_ = p.arena.Close()
	}
}
