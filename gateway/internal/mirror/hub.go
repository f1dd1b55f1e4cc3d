package mirror

import (
	"slices"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/loop"
)

// hotFor is how long an end stays hot after its latest activity. Within it the library need not ring for the next byte;
// and it is short, so that the shard examines few ends in each turn.
const hotFor = time.Millisecond

// restFor is how long after an end has got cold the peer is told what the library has read. It is less than a kernel
// may wait with its ACK, and spares a stream with pauses a message for each.
const restFor = 10 * time.Millisecond

// settleFor is how long an end that is to be closed waits for the peer gateway at most.
const settleFor = time.Second

// streamBytes is how much must move between two looks for what comes next to be better waited for: see [loop.Streamer].
const streamBytes = 64 << 10

// Hub is the driver of one shard's ends. It has work when the words of a hot end have changed.
//
//	cold, with its bell ── bell, a completion ──► hot ── shard sleeps ──► hot, with its bell
//	         ▲                                     │ ▲                          │
//	         └────── nothing for hotFor ───────────┘ └───── shard awake ────────┘
type Hub struct {
	shard     *loop.Shard
	hot       []*End
	lingering map[int]*lingerer
	moved     uint64 // bytes, both ways, since Streams looked
	stopped   bool
}

// NewHub makes the hub of a shard.
func NewHub(s *loop.Shard) *Hub {
	h := &Hub{shard: s, lingering: map[int]*lingerer{}}
	s.Post(func() { s.AddDriver(h) })
	return h
}

// Stop ends the hub, all of whose ends must be closed.
func (h *Hub) Stop() {
	h.shard.Call(func() {
		h.stopped = true
		for _, l := range h.lingering {
			h.release(l)
		}
		h.shard.DropDriver(h)
	})
}

// heat makes an end hot, or keeps it hot: it is examined in every turn, and its library need not ring the bell.
func (h *Hub) heat(e *End) {
	e.until = h.shard.Now().Add(hotFor)
	if !e.hot {
		e.hot = true
		e.disarm()
		h.hot = append(h.hot, e)
	}
}

// drop stops examining an end.
func (h *Hub) drop(e *End) {
	if e.hot {
		e.hot = false
		h.hot = slices.DeleteFunc(h.hot, func(o *End) bool { return o == e })
	}
}

// Progress implements verbs.Driver.
func (h *Hub) Progress(now time.Time) (worked bool, next time.Time) {
	for i := 0; i < len(h.hot); {
		e := h.hot[i]
		switch {
		case e.stirred():
			e.until = now.Add(hotFor)
			e.later()
			worked = true
		case now.After(e.until) && e.arm(true):
			e.hot = false
			e.rest(now)
			last := len(h.hot) - 1
			h.hot[i], h.hot[last] = h.hot[last], nil
			h.hot = h.hot[:last]
			continue
		}
		i++
	}
	return worked, time.Time{}
}

// Flush implements verbs.Driver.
func (*Hub) Flush() {}

// Arm implements verbs.Driver.
func (h *Hub) Arm() bool {
	for i, e := range h.hot {
		if !e.arm(false) {
			for _, armed := range h.hot[:i] {
				armed.disarm()
			}
			return false
		}
	}
	return true
}

// Disarm implements verbs.Driver.
func (h *Hub) Disarm() {
	for _, e := range h.hot {
		e.disarm()
	}
}

// Close implements verbs.Driver.
func (*Hub) Close() error { return nil }

// Streams implements loop.Streamer.
func (h *Hub) Streams() bool {
	much := h.moved >= streamBytes
	h.moved = 0
	return much
}

// Ready implements verbs.Peeker.
func (h *Hub) Ready() bool { return slices.ContainsFunc(h.hot, (*End).stirred) }
