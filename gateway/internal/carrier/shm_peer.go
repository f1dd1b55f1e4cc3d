package carrier

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs/shm"
)

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
