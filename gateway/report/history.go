package report

import (
	"slices"
	"sync"
)

// History keeps the last connections that ended or stayed native: a bounded
// ring, so that the record of a busy hour costs what that of a quiet one does.
// It is safe for concurrent use.
type History struct {
	mu sync.Mutex
	// ring holds the entries; next is where the following one goes. All
	// fields below are guarded by mu.
	ring  []ConnInfo
	next  int
	limit int
	feed  *Feed
}

// NewHistory returns a history of at most limit connections, at least one.
// Memory is taken as entries come. The feed, unless it is nil, is told of each.
func NewHistory(limit int, feed *Feed) *History {
	return &History{limit: max(limit, 1), feed: feed}
}

// Add records a connection, in place of the oldest one when full.
func (h *History) Add(c ConnInfo) {
	kind := EventEnded
	if c.End == EndNative {
		kind = EventNative
	}
	c.TellWay()
	h.feed.Tell(kind, c)
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ring) < h.limit {
		h.ring = append(h.ring, c)
	} else {
		h.ring[h.next] = c
	}
	h.next = (h.next + 1) % h.limit
}

// List copies the entries, newest first.
func (h *History) List() []ConnInfo {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.ring)
	out := make([]ConnInfo, 0, n)
	for i := range n {
		out = append(out, h.ring[(h.next-1-i+2*n)%n])
	}
	return slices.Clip(out)
}
