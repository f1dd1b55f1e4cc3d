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
	// mtuAsked is how long the kernel's answer about a path is cached.
	mtuAsked = time.Second
	// mtuNarrow is how long a path that lost full packets is assumed to have the MTU of
	// Ethernet: as long as the kernel remembers an ICMP error.
	mtuNarrow = 10 * time.Minute
	// narrowMTU fits a path MTU of 1500 bytes.
	narrowMTU = verbs.MTU1024
)

// pathMTU tracks how long a packet the path to one peer takes. Queue pairs keep the path MTU
// they begin with: if the path becomes narrower they fail, and their successors must fit. The
// zero value knows nothing. Its methods may be called from any goroutine.
type pathMTU struct {
	asked  loop.Instant  // when the kernel was asked
	kernel atomic.Uint32 // its answer, a verbs.MTU; 0: none
	narrow loop.Instant  // until when the loss of full packets above narrowMTU is remembered
}

// mtu returns the path MTU for a new queue pair between a device and a peer.
func (p *pathMTU) mtu(device verbs.MTU, to netip.Addr, now time.Time) verbs.MTU {
	if p.asked.Passed(now, mtuAsked) {
		m, err := soft.PathMTU(to)
		if err != nil {
			m = 0 // no route now, or it is too narrow: the proof will show
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

// failed records that a queue pair has failed: the path may be narrower than it was when the kernel was asked.
func (p *pathMTU) failed() { p.asked.Store(time.Time{}) }

// unproved records that full packets have not come back. If the network does not report that
// they are too long, only shorter ones can show it.
func (p *pathMTU) unproved(now time.Time) { p.narrow.Store(now.Add(mtuNarrow)) }
