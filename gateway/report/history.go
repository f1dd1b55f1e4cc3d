package report

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
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

// EventSchema is the schema of the documents of watch.
const EventSchema = "smcgw.event/v1"

// EventKind says what happened to a connection.
type EventKind string

// The kinds: a connection began to be carried, left its carrier for the relay, was promoted,
// ended, or stayed native. Of a promoted connection each end is reported. Lost stands for
// events that came too fast for the reader, or for the programs to report. For UDP there are
// only ended and native.
const (
	EventCarried  EventKind = "carried"
	EventDemoted  EventKind = "demoted"
	EventPromoted EventKind = "promoted"
	EventEnded    EventKind = "ended"
	EventNative   EventKind = "native"
	EventLost     EventKind = "lost"
)

// Event is one line of watch.
type Event struct {
	Schema string    `json:"schema"`
	At     time.Time `json:"at"`
	Event  EventKind `json:"event"`
	// Conn is the connection; absent with EventLost.
	Conn *ConnInfo `json:"conn,omitempty"`
	// Lost counts the events missing at this point.
	Lost uint64 `json:"lost,omitempty"`
}

const (
	// FeedReaders bounds the readers; feedRoom bounds the events waiting for each.
	FeedReaders = 16
	feedRoom    = 4096
)

// Feed tells readers what happens to connections. Telling never blocks: a slow reader loses
// events and is told how many. A nil Feed has no readers.
type Feed struct {
	watched atomic.Int32
	mu      sync.Mutex // guards everything below
	readers map[*Reader]struct{}
	missed  uint64 // the last total passed to [Feed.Missed]
}

// Reader is one reader of a feed.
type Reader struct {
	of     *Feed
	Events chan Event
	lost   uint64 // events lost after the last one in Events; guarded by the feed
}

// NewFeed returns a feed without readers.
func NewFeed() *Feed { return &Feed{readers: map[*Reader]struct{}{}} }

// Watched reports whether there is a reader; without one nothing need be described.
func (f *Feed) Watched() bool { return f != nil && f.watched.Load() > 0 }

// Tell sends an event to the readers.
func (f *Feed) Tell(kind EventKind, c ConnInfo) {
	if !f.Watched() {
		return
	}
	c.TellWay()
	e := Event{Schema: EventSchema, At: time.Now().UTC(), Event: kind, Conn: &c}
	f.mu.Lock()
	defer f.mu.Unlock()
	for r := range f.readers {
		if !r.tellLostLocked() || !r.offer(e) {
			r.lost++
		}
	}
}

// Missed takes the total number of events that could not be reported so far, and returns how
// many are new.
func (f *Feed) Missed(total uint64) (n uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if total <= f.missed { // reported meanwhile
		return 0
	}
	n, f.missed = total-f.missed, total
	for r := range f.readers {
		r.lost += n
		r.tellLostLocked()
	}
	return n
}

// tellLostLocked queues an event about what was lost. It returns false if there is no room
// for it.
func (r *Reader) tellLostLocked() bool {
	if r.lost > 0 && r.offer(Event{Schema: EventSchema, At: time.Now().UTC(), Event: EventLost, Lost: r.lost}) {
		r.lost = 0
	}
	return r.lost == 0
}

func (r *Reader) offer(e Event) bool {
	select {
	case r.Events <- e:
		return true
	default:
		return false
	}
}

// Drained reports what was lost after the last event, when no event is waiting.
func (r *Reader) Drained() {
	if len(r.Events) == 0 {
		r.of.mu.Lock()
		defer r.of.mu.Unlock()
		r.tellLostLocked()
	}
}

// Read starts watching, until leave is called. ok is false if there are too many readers.
func (f *Feed) Read() (r *Reader, leave func(), ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.readers) >= FeedReaders {
		return nil, nil, false
	}
	r = &Reader{of: f, Events: make(chan Event, feedRoom)}
	f.readers[r] = struct{}{}
	f.watched.Add(1)
	return r, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.readers, r)
		f.watched.Add(-1)
	}, true
}
