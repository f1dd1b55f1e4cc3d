package admin

import (
	"sync"
	"sync/atomic"
	"time"
)

// eventSchema versions the documents of watch.
const eventSchema = "smcgw.event/v1"

// EventKind says what happened to a connection.
type EventKind string

// The kinds: a connection began to be carried, left its carrier for the relay, ended, or
// stayed native. Lost stands for events that the reader was too slow for. Of UDP there are
// ends and native ones.
const (
	EventCarried EventKind = "carried"
	EventDemoted EventKind = "demoted"
	EventEnded   EventKind = "ended"
	EventNative  EventKind = "native"
	EventLost    EventKind = "lost"
)

// Event is a line of watch.
type Event struct {
	Schema string    `json:"schema"`
	At     time.Time `json:"at"`
	Event  EventKind `json:"event"`
	// Conn is the connection; absent with EventLost.
	Conn *ConnInfo `json:"conn,omitempty"`
	// Lost counts the events that are missing here.
	Lost uint64 `json:"lost,omitempty"`
}

const (
	// feedReaders bounds how many may watch, feedRoom how many events wait for each.
	feedReaders = 16
	feedRoom    = 4096
)

// Feed tells readers what happens to connections. To tell takes no waiting: a slow reader
// loses events, and is told how many. A nil Feed has no readers.
type Feed struct {
	watched atomic.Int32
	mu      sync.Mutex // guards everything below
	readers map[*feedReader]struct{}
}

// feedReader is one that watches.
type feedReader struct {
	events chan Event
	lost   atomic.Uint64
}

// NewFeed returns a feed without readers.
func NewFeed() *Feed { return &Feed{readers: map[*feedReader]struct{}{}} }

// Watched reports whether there is a reader: without one nothing need be described.
func (f *Feed) Watched() bool { return f != nil && f.watched.Load() > 0 }

// Tell gives an event to the readers.
func (f *Feed) Tell(kind EventKind, c ConnInfo) {
	if !f.Watched() {
		return
	}
	e := Event{Schema: eventSchema, At: time.Now().UTC(), Event: kind, Conn: &c}
	f.mu.Lock()
	defer f.mu.Unlock()
	for r := range f.readers {
		select {
		case r.events <- e:
		default:
			r.lost.Add(1)
		}
	}
}

// read begins to watch, until leave is called; false: too many do.
func (f *Feed) read() (r *feedReader, leave func(), ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.readers) >= feedReaders {
		return nil, nil, false
	}
	r = &feedReader{events: make(chan Event, feedRoom)}
	f.readers[r] = struct{}{}
	f.watched.Add(1)
	return r, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.readers, r)
		f.watched.Add(-1)
	}, true
}
