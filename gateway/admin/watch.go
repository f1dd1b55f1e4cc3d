package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
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

// successorPoll is how often Watch looks for the gateway that has taken over.
const successorPoll = 50 * time.Millisecond

// Watch calls fn for what happens to connections that match the filter, until fn fails or ctx
// ends, which is not an error. When another gateway takes over, both are watched until the one
// before ends. ready, unless nil, is called once events are no longer missed.
func (c *Client) Watch(ctx context.Context, f report.ConnFilter, ready func(), fn func(report.Event) error) error {
	life, cancel := context.WithCancel(ctx)
	w := watching{client: c, filter: f, fn: fn, ended: make(chan watchedGateway)}
	defer w.streams.Wait()
	defer cancel()
	err := w.begin(life)
	if err == nil && ready != nil {
		ready()
	}
	poll := time.NewTicker(successorPoll)
	defer poll.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
		case g := <-w.ended:
			w.live = slices.DeleteFunc(w.live, g.is)
			if err = g.err; err == nil && w.begin(life) != nil && len(w.live) == 0 {
				err = c.unreachable(errors.New("the daemon has ended"))
			}
		case <-poll.C:
			_ = w.begin(life) // else the next time
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// watchedGateway is a gateway by the file of its socket, and why its events ended.
type watchedGateway struct {
	at  os.FileInfo
	err error
}

// is reports whether the other one is the same. A later file may have the number of one that
// is gone.
func (g watchedGateway) is(other watchedGateway) bool {
	return g.at == nil || os.SameFile(g.at, other.at) && g.at.ModTime().Equal(other.at.ModTime())
}

// watching is a call of Watch.
type watching struct {
	client *Client
	filter report.ConnFilter
	live   []watchedGateway

	streams sync.WaitGroup
	ended   chan watchedGateway

	mu sync.Mutex // held while fn is called
	fn func(report.Event) error
}

// begin watches the gateway whose socket is there, unless it is watched already.
func (w *watching) begin(ctx context.Context) error {
	for {
		g := w.client.gatewayAt()
		if len(w.live) > 0 && (g.at == nil || slices.ContainsFunc(w.live, g.is)) {
			return nil
		}
		body, err := w.client.events(ctx, w.filter)
		if err != nil {
			return err
		}
		if !g.is(w.client.gatewayAt()) { // whose events these are is not known
			_ = body.Close()
			continue
		}
		w.live = append(w.live, g)
		w.streams.Go(func() {
			defer body.Close()
			if g.err = readEvents(body, w.tell); errors.Is(g.err, io.ErrUnexpectedEOF) {
				g.err = nil
			}
			select {
			case w.ended <- g:
			case <-ctx.Done():
			}
		})
		return nil
	}
}

// tell calls fn for one event at a time.
func (w *watching) tell(e report.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fn(e)
}

// gatewayAt returns the gateway whose socket is at the path of the client.
func (c *Client) gatewayAt() (g watchedGateway) {
	g.at, _ = os.Lstat(c.path)
	return g
}

// events asks for a stream of events, by a connection of its own: one that is kept may lead to
// the gateway before.
func (c *Client) events(ctx context.Context, f report.ConnFilter) (io.ReadCloser, error) {
	v := url.Values{}
	addFilter(v, f)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://smcgw/v1/watch?"+v.Encode(), nil)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	t := transportTo(c.path)
	t.DisableKeepAlives, t.ResponseHeaderTimeout = true, clientTimeout
	resp, err := c.open(t, req)
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
