package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
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
// ends, which is not an error. ready, unless nil, is called once events are no longer missed.
func (c *Client) Watch(ctx context.Context, f report.ConnFilter, ready func(), fn func(report.Event) error) error {
	v := url.Values{}
	addFilter(v, f)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://smcgw/v1/watch?"+v.Encode(), nil)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	client := http.Client{Transport: c.http.Transport} // without a time limit for the answer
	resp, err := client.Do(req)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return c.unreachable(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, adminMaxBody)) // a truncated text does not parse as a document
		return replyError(resp.StatusCode, text)
	}
	if ready != nil {
		ready()
	}
	err = readEvents(resp.Body, fn)
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil || errors.Is(err, io.ErrUnexpectedEOF):
		return c.unreachable(errors.New("the daemon has ended"))
	default:
		return err
	}
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
