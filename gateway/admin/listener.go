package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
)

// limitedListener accepts a bounded number of connections at a time; more wait in the
// kernel's queue. Unlike x/net/netutil it gives access to the underlying connection, whose
// credentials are needed.
type limitedListener struct {
	net.Listener
	slots chan struct{}
	done  chan struct{}
	once  sync.Once

	// privileged reports whether a connection may use the slots reserved for peers that may
	// change something; nil: none are reserved.
	privileged func(net.Conn) bool
	others     chan struct{} // slots for the others
}

// limitListener bounds l to n connections.
func limitListener(l net.Listener, n int) *limitedListener {
	return &limitedListener{Listener: l, slots: make(chan struct{}, n), done: make(chan struct{})}
}

// Keep limits connections that are not privileged to others slots. More of them are closed at
// once, so that they cannot keep an operator from the socket.
func (l *limitedListener) Keep(others int, privileged func(net.Conn) bool) *limitedListener {
	l.privileged, l.others = privileged, make(chan struct{}, others)
	return l
}

// Accept waits for a slot and a connection.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.done:
			return nil, net.ErrClosed
		}
		c, err := l.Listener.Accept()
		if err != nil {
			<-l.slots
			return nil, passing(err)
		}
		lc := &limitedConn{Conn: c, slots: []chan struct{}{l.slots}}
		if l.take(lc) {
			return lc, nil
		}
		_ = lc.Close()
	}
}

// passing makes a server continue after an error other than the end of its listener: for one
// connection, the kernel lacked memory or an epoll watch (ENOSPC of epoll_ctl(2)).
func passing(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return err
	}
	return temporary{err}
}

// temporary is an error after which net/http pauses and accepts again.
type temporary struct{ error }

// Temporary implements [net.Error].
func (temporary) Temporary() bool { return true }

// Timeout implements [net.Error].
func (temporary) Timeout() bool { return false }

// Unwrap returns the wrapped error.
func (t temporary) Unwrap() error { return t.error }

// take takes the second slot that an unprivileged connection needs.
func (l *limitedListener) take(c *limitedConn) bool {
	if l.privileged == nil || l.privileged(c.Conn) {
		return true
	}
	select {
	case l.others <- struct{}{}:
		c.slots = append(c.slots, l.others)
		return true
	default:
		return false
	}
}

// Close stops accepting, even if Accept is waiting for a slot.
func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// limitedConn frees its slots when it is closed.
type limitedConn struct {
	net.Conn
	slots []chan struct{}
	once  sync.Once
}

// Close closes the connection.
func (c *limitedConn) Close() error {
	defer c.once.Do(func() { free(c.slots) })
	return c.Conn.Close()
}

// readyBeat is the age of the heartbeat at which the gateway is reported as not ready: new
// connections have been native for a while by then.
const readyBeat = 3 * time.Second

// getLive answers for as long as the process is alive: a supervisor that killed a gateway for
// anything less would reset what it carries.
func getLive(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) }

// getReady reports whether the gateway does its job: it beats and accepts new connections. A
// gateway that is off, observes or is degraded is ready, since all connections of its host
// work; with strict=1 it is not.
func (s *Server) getReady(w http.ResponseWriter, r *http.Request) {
	t := s.src.Totals()
	text, ready := readiness(&t, time.Now(), r.URL.Query().Get("strict") == "1")
	if !ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write([]byte(text))
}

// readiness returns the answer: the verdict, and lines for what operators should know.
func readiness(t *report.Snapshot, now time.Time, strict bool) (text string, ready bool) {
	var b strings.Builder
	late := t.Heartbeat.IsZero() || now.Sub(t.Heartbeat) > readyBeat
	limited := len(t.Degraded) > 0 || t.Mode != report.ModeEnforce
	ready = !late && !t.Draining && (!strict || !limited)
	if ready {
		b.WriteString("ready\n")
	} else {
		b.WriteString("not ready\n")
	}
	if late {
		b.WriteString("the datapath does not beat: new connections are native\n")
	}
	if t.Draining {
		b.WriteString("the gateway drains: new connections are native\n")
	}
	fmt.Fprintf(&b, "mode %s\n", t.Mode)
	if len(t.Degraded) > 0 {
		fmt.Fprintf(&b, "degraded %s\n", strings.Join(t.Degraded, " "))
	}
	return b.String(), ready
}

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
