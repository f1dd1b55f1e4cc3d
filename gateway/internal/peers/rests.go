package peers

import (
	"net/netip"
	"sync"
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

// Rests is which carriers are left alone with which peers, since connections had
// to leave them.
type Rests struct {
	mu    sync.Mutex // guards everything below
	known map[restKey]negotiate.Rest
}

type restKey struct {
	peer netip.Addr
	kind negotiate.CarrierKind
}

// NewRests returns none.
func NewRests() *Rests { return &Rests{known: map[restKey]negotiate.Rest{}} }

// Failed takes note that a connection has left a carrier because that failed.
func (r *Rests) Failed(peer netip.Addr, kind negotiate.CarrierKind, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := restKey{peer, kind}
	if _, ok := r.known[k]; !ok && len(r.known) >= peerBookLimit {
		r.sweepLocked(now)
	}
	r.known[k] = r.known[k].Failed(now)
}

// sweepLocked forgets what is over, and if that is nothing, everything.
func (r *Rests) sweepLocked(now time.Time) {
	for k, rest := range r.known {
		if rest.Over(now) {
			delete(r.known, k)
		}
	}
	if len(r.known) >= peerBookLimit {
		clear(r.known)
	}
}

// Resting reports whether a carrier is to be left alone.
func (r *Rests) Resting(peer netip.Addr, kind negotiate.CarrierKind, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rest, ok := r.known[restKey{peer, kind}]
	return ok && rest.Resting(now)
}

// Flush forgets everything.
func (r *Rests) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.known)
}
