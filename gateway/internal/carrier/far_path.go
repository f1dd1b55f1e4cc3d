package carrier

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft"
)

const (
	// mtuAsked is how long an answer of the kernel about a path holds.
	mtuAsked = time.Second
	// mtuNarrow is how long a path that has lost full packets is taken for one of
	// Ethernet: as long as the kernel remembers what ICMP has said.
	mtuNarrow = 10 * time.Minute
	// narrowMTU fits a path MTU of 1500 bytes.
	narrowMTU = verbs.MTU1024
)

// pathMTU is how long a packet the path to one peer takes. Queue pairs keep the path
// MTU they begin with: where a path has become narrower they fail, and those that
// come after them must fit. The zero value knows nothing. Its methods may be
// called from any goroutine.
type pathMTU struct {
	asked  loop.Instant  // when the kernel was asked
	kernel atomic.Uint32 // its answer, a verbs.MTU; 0: none
	narrow loop.Instant  // until when full packets of more than narrowMTU are known to be lost
}

// mtu is the path MTU for a new queue pair between a device and a peer.
func (p *pathMTU) mtu(device verbs.MTU, to netip.Addr, now time.Time) verbs.MTU {
	if p.asked.Passed(now, mtuAsked) {
		m, err := soft.PathMTU(to)
		if err != nil {
			m = 0 // there is no route now, or it is too narrow: the proof will tell
		}
		p.kernel.Store(uint32(m))
	}
	if m := verbs.MTU(p.kernel.Load()); m != 0 {
		device = min(device, m)
	}
	if now.Before(p.narrow.Load()) {
		device = min(device, narrowMTU)
	}
	return device
}

// unproved takes note that full packets have not come back: where the network does
// not say that they are too long, only shorter ones can tell.
func (p *pathMTU) unproved(now time.Time) { p.narrow.Store(now.Add(mtuNarrow)) }
