package report

import (
	"slices"
	"sync"
)

// History keeps the latest connections that ended or stayed native in a bounded ring, so that
// the record of a busy hour costs no more than that of a quiet one. It is safe for concurrent
// use.
type History struct {
	mu sync.Mutex
	// ring holds the entries; next is the index of the next one. mu guards all fields below.
	ring  []ConnInfo
	next  int
	limit int
	feed  *Feed
}

// NewHistory returns a history of at most limit connections, and at least one. Memory is
// allocated as entries come. feed, if not nil, receives each entry.
func NewHistory(limit int, feed *Feed) *History {
	return &History{limit: max(limit, 1), feed: feed}
}

// Add records a connection, replacing the oldest one if the history is full.
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

// List returns the entries, newest first.
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
