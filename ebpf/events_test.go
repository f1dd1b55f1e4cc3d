package ebpf

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// recorder collects events.
type recorder struct {
	mu     sync.Mutex
	events []Event
}

// record reads events until the test ends.
func record(t *testing.T, d *Datapath) *recorder {
	t.Helper()
	r := new(recorder)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = d.Events(ctx, func(e Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, e)
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

// find returns the first matching event so far.
func (r *recorder) find(match func(Event) bool) (Event, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if match(e) {
			return e, true
		}
	}
	return Event{}, false
}

// wait waits for a matching event.
func (r *recorder) wait(t *testing.T, timeout time.Duration, match func(Event) bool) Event {
	t.Helper()
	var e Event
	require.Eventually(t, func() (ok bool) {
		e, ok = r.find(match)
		return ok
	}, timeout, 5*time.Millisecond)
	return e
}

// replacedBy matches the end of a connection.
func replacedBy(t Tuple, isn uint32) func(Event) bool {
	return func(e Event) bool { return e.Kind == EventReplaced && e.Tuple == t && e.ISN == isn }
}

// nativeFor matches a native decision to a remote port.
func nativeFor(side Side, reason uint8) func(Event) bool {
	return func(e Event) bool { return e.Kind == EventNative && e.Side == side && e.Reason == reason }
}

// Events ends with its context and with the datapath.
func TestEventsEnd(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	h, other := newPair(t)
	h.ghosts(other)
	var d *Datapath
	var err error
	cfg := withLegs(t, Config{Devices: []string{"w0"}})
	h.do(func() { d, err = Open(cfg) })
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, d.Events(ctx, func(Event) {}), context.Canceled)
	ended := make(chan error, 1)
	inside, closing := make(chan struct{}), make(chan struct{})
	go func() {
		ended <- d.Events(context.Background(), func(Event) { // calls d while Close waits
			close(inside)
			<-closing
			time.Sleep(20 * time.Millisecond)
			_, _ = d.Counters()
		})
	}()
	_, err = h.begin(unix.AF_INET, addrPort(ghost4+":7777"))
	require.NoError(t, err)
	<-inside
	close(closing)
	require.NoError(t, d.Close())
	require.ErrorIs(t, <-ended, os.ErrClosed)
	require.NoError(t, d.Close())
	require.ErrorIs(t, d.Heartbeat(), os.ErrClosed)
}
