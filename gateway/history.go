package gateway

import (
	"slices"
	"sync"

	"github.com/smcgw/smcgw/gateway/admin"
)

// history keeps the last connections that ended or stayed native: a bounded
// ring, so that the record of a busy hour costs what that of a quiet one does.
// It is safe for concurrent use.
type history struct {
	mu sync.Mutex
	// ring holds the entries; next is where the following one goes. All
	// fields below are guarded by mu.
	ring  []admin.ConnInfo
	next  int
	limit int
}

// newHistory returns a history of at most limit connections, at least one.
// Memory is taken as entries come.
func newHistory(limit int) *history {
	return &history{limit: max(limit, 1)}
}

// add records a connection, in place of the oldest one when full.
func (h *history) add(c admin.ConnInfo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ring) < h.limit {
		h.ring = append(h.ring, c)
	} else {
		h.ring[h.next] = c
	}
	h.next = (h.next + 1) % h.limit
}

// list copies the entries, newest first.
func (h *history) list() []admin.ConnInfo {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.ring)
	out := make([]admin.ConnInfo, 0, n)
	for i := range n {
		out = append(out, h.ring[(h.next-1-i+2*n)%n])
	}
	return slices.Clip(out)
}
