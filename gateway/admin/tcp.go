package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"golang.org/x/sys/unix"
)

// tcpServer serves metrics over TCP, if configured. Its port can be released and taken again
// while the daemon runs.
type tcpServer struct {
	addr string // empty: none

	mu      sync.Mutex // guards everything below
	ln      net.Listener
	srv     *http.Server
	broken  context.CancelCauseFunc
	closed  bool
	serving sync.WaitGroup
}

// listen takes the port.
func (s *tcpServer) listen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addr == "" || s.ln != nil || s.closed {
		return nil
	}
	ln, err := net.Listen("tcp", s.addr)
	if err != nil {
		if errors.Is(err, unix.EADDRINUSE) {
			err = fmt.Errorf("%w: another program has the port; metrics.listen in the configuration names another", err)
		}
		return fmt.Errorf("listen for metrics: %w", err)
	}
	s.ln = ln
	if s.srv != nil {
		s.startLocked()
	}
	return nil
}

// serve serves requests with srv from now on; broken is called if the listener fails.
func (s *tcpServer) serve(srv *http.Server, broken context.CancelCauseFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.srv, s.broken = srv, broken
	if s.ln != nil {
		s.startLocked()
	}
}

// startLocked serves the listener.
func (s *tcpServer) startLocked() {
	ln := s.ln
	s.srv.SetKeepAlivesEnabled(true)
	s.serving.Go(func() {
		if err := s.srv.Serve(limitListener(ln, adminMaxConns)); !errors.Is(err, net.ErrClosed) && !errors.Is(err, http.ErrServerClosed) {
			s.broken(err)
		}
	})
}

// release releases the port.
func (s *tcpServer) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ln != nil {
		_ = s.ln.Close()
		s.ln = nil
		if s.srv != nil { // the next request must reach the next gateway on the port
			s.srv.SetKeepAlivesEnabled(false)
		}
	}
}

// close stops the server permanently. It is idempotent.
func (s *tcpServer) close() {
	s.release()
	s.mu.Lock()
	s.closed = true
	srv := s.srv
	s.mu.Unlock()
	if srv != nil {
		stopServer(srv)
	}
	s.serving.Wait()
}
