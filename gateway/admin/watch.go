package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
)

// watchPulse is how often a reader receives an empty line when nothing happens, so that a
// reader that is gone is noticed.
const watchPulse = 10 * time.Second

// getWatch sends what happens to connections, one document per line, until the reader
// disconnects.
func (s *Server) getWatch(w http.ResponseWriter, r *http.Request) {
	filter, err := parseConnFilter(r.URL.Query())
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	reader, leave, ok := s.ctl.Feed().Read()
	if !ok {
		writeError(w, http.StatusServiceUnavailable, fmt.Sprintf("%d watch already", report.FeedReaders))
		return
	}
	defer leave()
	w.Header().Set("Content-Type", "application/x-ndjson")
	c := http.NewResponseController(w)
	send := func(line []byte) bool {
		_ = c.SetWriteDeadline(time.Now().Add(adminWriteLimit)) // the next write shows an error
		_, err := w.Write(append(line, '\n'))
		return err == nil && c.Flush() == nil
	}
	pulse := time.NewTicker(watchPulse)
	defer pulse.Stop()
	for ok := send(nil); ok; {
		select {
		case e := <-reader.Events:
			ok = sendEvent(e, filter, send)
			reader.Drained()
		case <-pulse.C:
			ok = send(nil)
		case <-r.Context().Done():
			return
		case <-s.life.Done():
			return
		}
	}
}

// sendEvent sends an event if the filter matches. Notices about lost events go to every
// reader.
func sendEvent(e report.Event, f report.ConnFilter, send func([]byte) bool) bool {
	if e.Event != report.EventLost && !f.Matches(e.Conn) {
		return true
	}
	line, err := json.Marshal(e)
	return err == nil && send(line)
}

// Watch calls fn for what happens to connections that match the filter, until fn fails or ctx
// ends, which is not an error. When another gateway takes over, both are watched until the one
// before ends. ready, unless nil, is called once events are no longer missed.
func (c *Client) Watch(ctx context.Context, f report.ConnFilter, ready func(), fn func(report.Event) error) error {
	if ready == nil {
		ready = func() {}
	}
	var mu sync.Mutex
	tell := func(e report.Event) error { // of two gateways one at a time
		mu.Lock()
		defer mu.Unlock()
		return fn(e)
	}
	return c.follow(ctx, ready, func(ctx context.Context) (session, error) {
		body, err := c.events(ctx, f)
		if err != nil {
			return session{}, err
		}
		wait := func() error {
			err := readEvents(body, tell)
			if errors.Is(err, io.ErrUnexpectedEOF) { // the gateway has ended
				return nil
			}
			return err
		}
		return session{wait: wait, close: func() { _ = body.Close() }}, nil
	})
}

// events asks for a stream of events.
func (c *Client) events(ctx context.Context, f report.ConnFilter) (io.ReadCloser, error) {
	v := url.Values{}
	addFilter(v, f)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://smcgw/v1/watch?"+v.Encode(), nil)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	resp, err := c.open(req, clientTimeout)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// readEvents calls fn for each document in a stream of watch, until the stream ends or fn
// fails.
func readEvents(from io.Reader, fn func(report.Event) error) error {
	for dec := json.NewDecoder(from); ; {
		var e report.Event
		err := dec.Decode(&e)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read events: %w", err)
		case e.Schema != report.EventSchema:
			return fmt.Errorf("read events: schema %q instead of %q", e.Schema, report.EventSchema)
		case e.Conn == nil && e.Event != report.EventLost:
			return fmt.Errorf("read events: %s without a connection", e.Event)
		}
		if err := fn(e); err != nil {
			return err
		}
	}
}
