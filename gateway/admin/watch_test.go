package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/gateway/report"
)

func sampleEvent() Event {
	c := sampleConns()[1]
	return Event{Schema: eventSchema, At: time.Date(2026, 11, 20, 9, 30, 0, 0, time.UTC), Event: EventNative, Conn: &c}
}

func TestConnFilter(t *testing.T) {
	conns := sampleConns()
	for _, c := range []struct {
		filter ConnFilter
		want   [3]bool
	}{
		{ConnFilter{}, [3]bool{true, true, true}},
		{ConnFilter{Port: 6379}, [3]bool{true, false, true}},
		{ConnFilter{Port: 40001}, [3]bool{false, false, true}},
		{ConnFilter{Peer: netip.MustParsePrefix("10.0.0.0/8")}, [3]bool{true, false, true}},
		{ConnFilter{Carrier: report.CarrierRelay}, [3]bool{false, false, true}},
		{ConnFilter{Reason: "wire_reset"}, [3]bool{false, false, true}},
		{ConnFilter{State: "native"}, [3]bool{false, true, false}},
		{ConnFilter{Side: report.SideServer}, [3]bool{false, true, false}},
		{ConnFilter{Proto: "udp"}, [3]bool{}},
		{ConnFilter{End: EndAborted, Port: 6379}, [3]bool{false, false, true}},
	} {
		for i := range conns {
			require.Equal(t, c.want[i], c.filter.Matches(&conns[i]), "%+v %d", c.filter, i)
		}
		q := ConnQuery{Closed: true, Details: true, Filter: c.filter}
		got, err := parseConnQuery(q.values())
		require.NoError(t, err)
		require.Equal(t, q, got)
	}
	demoted := conns[0]
	demoted.Demoted = DemotedByOperator
	require.True(t, ConnFilter{Reason: DemotedByOperator}.Matches(&demoted))
	_, err := parseConnFilter(map[string][]string{"filter": {`"` + strings.Repeat("x", adminMaxBody) + `"`}})
	require.ErrorContains(t, err, "too long")
}

// Every reader hears of what matches its filter; nothing is described when none watches.
func TestWatch(t *testing.T) {
	a := startAdmin(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	require.False(t, a.ctl.feed.Watched())
	ready, got, done := make(chan struct{}), make(chan Event, 10), make(chan error, 1)
	go func() {
		done <- a.client.Watch(ctx, ConnFilter{Port: 80}, func() { close(ready) }, func(e Event) error {
			got <- e
			return nil
		})
	}()
	<-ready
	require.True(t, a.ctl.feed.Watched())
	h := NewHistory(10, a.ctl.feed)
	for _, c := range sampleConns() {
		h.Add(c)
	}
	e := <-got
	require.Equal(t, EventNative, e.Event)
	require.WithinDuration(t, time.Now(), e.At, time.Minute)
	require.Equal(t, sampleConns()[1], *e.Conn)
	cancel()
	require.NoError(t, <-done)
	require.Empty(t, got)
	require.Eventually(t, func() bool { return !a.ctl.feed.Watched() }, 30*time.Second, time.Millisecond)
	a.ctl.feed.Tell(EventNative, ConnInfo{}) // without readers
	(*Feed)(nil).Tell(EventNative, ConnInfo{})
}

// TestFeedLoses: a reader hears of every event, or in its place of how many are missing
// there, also of the last ones.
func TestFeedLoses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := NewFeed()
		r, leave, ok := f.read()
		require.True(t, ok)
		defer leave()
		var told, heard, missed uint64
		hear := func() {
			e := <-r.events
			r.drained()
			if e.Event == EventLost {
				require.Positive(t, e.Lost)
				heard += e.Lost
				return
			}
			require.Equal(t, heard, e.Conn.ID)
			heard++
		}
		for range rapid.IntRange(1, 8).Draw(t, "turns") {
			for range rapid.IntRange(0, feedRoom+feedRoom/2).Draw(t, "told") {
				f.Tell(EventNative, ConnInfo{ID: told})
				told++
			}
			n := rapid.Uint64Range(0, 3).Draw(t, "missed")
			missed += n
			told += n
			require.Equal(t, n, f.Missed(missed))
			require.Zero(t, f.Missed(missed))
			for range min(len(r.events), rapid.IntRange(0, feedRoom+1).Draw(t, "heard")) {
				hear()
			}
		}
		for len(r.events) > 0 {
			hear()
		}
		require.Equal(t, told, heard)
	})
}

// What is missing is told to a reader also when nothing else happens, whatever its filter; a
// daemon that ends ends the stream, and fn can.
func TestWatchEnds(t *testing.T) {
	a := startAdmin(t, nil)
	lost, stop := make(chan uint64, 1), errors.New("heard")
	err := a.client.Watch(t.Context(), ConnFilter{Port: 1}, func() { a.ctl.feed.Missed(7) }, func(e Event) error {
		lost <- e.Lost
		return stop
	})
	require.ErrorIs(t, err, stop)
	require.EqualValues(t, 7, <-lost)

	enough := errors.New("enough")
	first := make(chan error, 1)
	go func() {
		first <- a.client.Watch(t.Context(), ConnFilter{}, nil, func(Event) error { return enough })
	}()
	require.Eventually(t, func() bool {
		a.ctl.feed.Tell(EventEnded, sampleConns()[2])
		return len(first) == 1
	}, 30*time.Second, time.Millisecond)
	require.ErrorIs(t, <-first, enough)

	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- a.client.Watch(t.Context(), ConnFilter{}, func() { close(ready) }, func(Event) error { return nil })
	}()
	<-ready
	a.stop()
	require.ErrorIs(t, <-done, ErrDaemonUnreachable)
}

func TestWatchIsBounded(t *testing.T) {
	a := startAdmin(t, nil)
	for range feedReaders {
		_, leave, ok := a.ctl.feed.read()
		require.True(t, ok)
		defer leave()
	}
	err := a.client.Watch(t.Context(), ConnFilter{}, nil, nil)
	require.EqualError(t, err, "answer of the daemon: 16 watch already")
	require.Equal(t, http.StatusServiceUnavailable, rawGet(t, a, "GET", "/v1/watch", nil).StatusCode)
}

func TestReadEvents(t *testing.T) {
	line, err := json.Marshal(sampleEvent())
	require.NoError(t, err)
	var got []Event
	read := func(text string) error {
		got = nil
		return ReadEvents(strings.NewReader(text), func(e Event) error {
			got = append(got, e)
			return nil
		})
	}
	require.NoError(t, read(string(line)+"\n\n"+string(line)+"\n"))
	require.Equal(t, []Event{sampleEvent(), sampleEvent()}, got)
	require.NoError(t, read(""))
	for i := 1; i < len(line); i++ {
		require.Error(t, read(string(line[:i])), i)
	}
	require.ErrorContains(t, read(`{"schema":"smcgw.event/v2"}`), `schema "smcgw.event/v2"`)
	require.ErrorContains(t, read(`{"schema":"smcgw.event/v1","event":"ended"}`), "ended without a connection")
}

func FuzzReadEvents(f *testing.F) {
	line, _ := json.Marshal(sampleEvent())
	f.Add(line)
	f.Add([]byte(`{"schema":"smcgw.event/v1","event":"lost","lost":3}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = ReadEvents(strings.NewReader(string(b)), func(e Event) error {
			require.True(t, e.Conn != nil || e.Event == EventLost)
			return nil
		})
	})
}
