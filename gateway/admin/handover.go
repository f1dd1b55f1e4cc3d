package admin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// The exchange before a connection is handed over; after it, the client speaks first.
const (
	handoverRequest = "POST /v1/handover HTTP/1.1\r\nHost: smcgw\r\nConnection: Upgrade\r\nUpgrade: smcgw\r\nContent-Length: 0\r\n\r\n"
	handoverAnswer  = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: smcgw\r\n\r\n"
)

// postHandover hands a connection over to the gateway.
func (s *Server) postHandover(w http.ResponseWriter, _ *http.Request) {
	s.talks.Add(1) // before the HTTP server stops waiting for it
	defer s.talks.Done()
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	_, _ = io.WriteString(conn, handoverAnswer) // the client may be gone
	s.Handover(s.life, conn)
}

// Handover opens a connection to the function in Server.Handover. The caller needs the same
// permission as for [Client.SetOff]. If there is no daemon, the error is [Absent].
func (c *Client) Handover(ctx context.Context) (*net.UnixConn, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	_, _ = io.WriteString(conn, handoverRequest) // the answer shows an error
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	switch {
	case !stop():
		err = c.unreachable(context.Cause(ctx))
	case err != nil:
		err = c.unreachable(err)
	case resp.StatusCode != http.StatusSwitchingProtocols:
		text, _ := io.ReadAll(io.LimitReader(resp.Body, adminMaxBody)) // a truncated text does not parse as a document
		err = replyError(resp.StatusCode, text)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// StepAside gives up the path of the admin socket and the metrics port to another gateway.
// This one is then found beside its path, and also at its path until the other one is there.
// If StepAside fails, StepBack undoes the part that was done.
func (s *Server) StepAside() error {
	s.scrape.release()
	s.reuse(false) // the next request must reach the next gateway
	if err := s.socket.moveAside(); err != nil {
		return fmt.Errorf("move admin socket: %w", err)
	}
	return nil
}

// StepBack undoes StepAside, except for what another gateway still holds. It can be repeated.
func (s *Server) StepBack() error {
	s.reuse(true)
	return errors.Join(s.socket.moveBack(), s.scrape.listen())
}

// predecessorPatience is how long the status waits for the report of a draining predecessor.
const predecessorPatience = 500 * time.Millisecond

// Predecessor queries the gateway that this one has taken over from, if it is still draining.
func (s *Server) Predecessor() *report.DrainInfo {
	if !s.socket.inPlace() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), predecessorPatience)
	defer cancel()
	c := NewClient(s.socket.path + config.DrainingSuffix)
	defer c.Close()
	st, err := c.Status(ctx)
	if err != nil {
		return nil
	}
	return st.Draining
}

// gate bounds the documents in progress: those being made or not yet read by their clients.
type gate struct {
	all, others chan struct{}
	patience    time.Duration
}

// newGate allows n documents in progress, and at most others of them for unprivileged
// clients. Further ones wait for up to patience.
func newGate(n, others int, patience time.Duration) *gate {
	return &gate{all: make(chan struct{}, n), others: make(chan struct{}, others), patience: patience}
}

// Enter waits for a place, which leave frees. ok is false if none became free in time.
func (g *gate) Enter(ctx context.Context, privileged bool) (leave func(), ok bool) {
	ctx, cancel := context.WithTimeout(ctx, g.patience)
	defer cancel()
	places := []chan struct{}{g.others, g.all}
	if privileged {
		places = places[1:]
	}
	for i, p := range places {
		if !take(ctx, p) {
			free(places[:i])
			return nil, false
		}
	}
	return func() { free(places) }, true
}

// take takes a place, waiting for one if needed.
func take(ctx context.Context, p chan struct{}) bool {
	select {
	case p <- struct{}{}:
		return true
	default:
	}
	select {
	case p <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// free frees one place of each.
func free(places []chan struct{}) {
	for _, p := range places {
		<-p
	}
}
