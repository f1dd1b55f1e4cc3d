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

	"github.com/smcgw/smcgw/gateway/report"
)

func TestConnFilter(t *testing.T) {
	conns := sampleConns()
	for _, c := range []struct {
		filter report.ConnFilter
		want   [3]bool
	}{
		{report.ConnFilter{}, [3]bool{true, true, true}},
		{report.ConnFilter{Port: 6379}, [3]bool{true, false, true}},
		{report.ConnFilter{Port: 40001}, [3]bool{false, false, true}},
		{report.ConnFilter{Peer: netip.MustParsePrefix("10.0.0.0/8")}, [3]bool{true, false, true}},
		{report.ConnFilter{Carrier: report.CarrierRelay}, [3]bool{false, false, true}},
		{report.ConnFilter{Reason: "wire_reset"}, [3]bool{false, false, true}},
		{report.ConnFilter{Way: report.WayNative}, [3]bool{false, true, false}},
		{report.ConnFilter{End: report.EndAborted, Port: 6379}, [3]bool{false, false, true}},
	} {
		for i := range conns {
			require.Equal(t, c.want[i], c.filter.Matches(&conns[i]), "%+v %d", c.filter, i)
		}
		q := report.ConnQuery{Closed: true, Details: true, Filter: c.filter}
		got, err := parseConnQuery(valuesOf(q))
		require.NoError(t, err)
		require.Equal(t, q, got)
	}
	demoted := conns[0]
	demoted.Demoted = report.DemotedByOperator
	require.True(t, report.ConnFilter{Reason: report.DemotedByOperator}.Matches(&demoted))
	_, err := parseConnFilter(map[string][]string{"filter": {`"` + strings.Repeat("x", adminMaxBody) + `"`}})
	require.ErrorContains(t, err, "too long")
}

func sampleEvent() report.Event {
	c := sampleConns()[1]
	return report.Event{Schema: report.EventSchema, At: time.Date(2026, 11, 20, 9, 30, 0, 0, time.UTC), Event: report.EventNative, Conn: &c}
}

// Every reader hears of what matches its filter; nothing is described when none watches.
func TestWatch(t *testing.T) {
	a := startAdmin(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	require.False(t, a.ctl.feed.Watched())
	ready, got, done := make(chan struct{}), make(chan report.Event, 10), make(chan error, 1)
	go func() {
		done <- a.client.Watch(ctx, report.ConnFilter{Port: 80}, func() { close(ready) }, func(e report.Event) error {
			got <- e
			return nil
		})
	}()
	<-ready
	require.True(t, a.ctl.feed.Watched())
	h := report.NewHistory(10, a.ctl.feed)
	for _, c := range sampleConns() {
		h.Add(c)
	}
	e := <-got
	require.Equal(t, report.EventNative, e.Event)
	require.WithinDuration(t, time.Now(), e.At, time.Minute)
	require.Equal(t, sampleConns()[1], *e.Conn)
	cancel()
	require.NoError(t, <-done)
	require.Empty(t, got)
	require.Eventually(t, func() bool { return !a.ctl.feed.Watched() }, 30*time.Second, time.Millisecond)
	a.ctl.feed.Tell(report.EventNative, report.ConnInfo{}) // without readers
	(*report.Feed)(nil).Tell(report.EventNative, report.ConnInfo{})
}

// What is missing is told to a reader also when nothing else happens, whatever its filter; a
// daemon that ends ends the stream, and fn can.
func TestWatchEnds(t *testing.T) {
	a := startAdmin(t, nil)
	lost, stop := make(chan uint64, 1), errors.New("heard")
	err := a.client.Watch(t.Context(), report.ConnFilter{Port: 1}, func() { a.ctl.feed.Missed(7) }, func(e report.Event) error {
		lost <- e.Lost
		return stop
	})
	require.ErrorIs(t, err, stop)
	require.EqualValues(t, 7, <-lost)

	enough := errors.New("enough")
	first := make(chan error, 1)
	go func() {
		first <- a.client.Watch(t.Context(), report.ConnFilter{}, nil, func(report.Event) error { return enough })
	}()
	require.Eventually(t, func() bool {
		a.ctl.feed.Tell(report.EventEnded, sampleConns()[2])
		return len(first) == 1
	}, 30*time.Second, time.Millisecond)
	require.ErrorIs(t, <-first, enough)

	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- a.client.Watch(t.Context(), report.ConnFilter{}, func() { close(ready) }, func(report.Event) error { return nil })
	}()
	<-ready
	a.stop()
	require.ErrorIs(t, <-done, ErrDaemonUnreachable)
}

func TestWatchIsBounded(t *testing.T) {
	a := startAdmin(t, nil)
	for range report.FeedReaders {
		_, leave, ok := a.ctl.feed.Read()
		require.True(t, ok)
		defer leave()
	}
	err := a.client.Watch(t.Context(), report.ConnFilter{}, nil, nil)
	require.EqualError(t, err, "answer of the daemon: 16 watch already")
	require.Equal(t, http.StatusServiceUnavailable, rawGet(t, a, "GET", "/v1/watch", nil).StatusCode)
}

func TestReadEvents(t *testing.T) {
	line, err := json.Marshal(sampleEvent())
	require.NoError(t, err)
	var got []report.Event
	read := func(text string) error {
		got = nil
		return readEvents(strings.NewReader(text), func(e report.Event) error {
			got = append(got, e)
			return nil
		})
	}
	require.NoError(t, read(string(line)+"\n\n"+string(line)+"\n"))
	require.Equal(t, []report.Event{sampleEvent(), sampleEvent()}, got)
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
		_ = readEvents(strings.NewReader(string(b)), func(e report.Event) error {
			require.True(t, e.Conn != nil || e.Event == report.EventLost)
			return nil
		})
	})
}
