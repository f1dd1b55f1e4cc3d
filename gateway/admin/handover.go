package admin

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"time"
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
