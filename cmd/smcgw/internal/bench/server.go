package bench

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// The bounds of a server: it serves one measurement, not the public.
const (
	maxConns = 128 // connections that have not sent an order yet, and sessions
	// maxWork bounds the connections of the session.
	maxWork = maxIdle + 64
	// firstWords is the time in which a connection must say what it is for.
	firstWords = 5 * time.Second
	// enterWait is how long a client waits for the end of another's session; it must be less than firstWords.
	enterWait = 4 * time.Second
	// controlIdle is how long a session may be silent.
	controlIdle = 2 * time.Minute
	// grace is how much longer than its own time a work may take.
	grace = 10 * time.Second
	// blockSize is the size of bulk reads and writes.
	blockSize = 128 << 10
)

// ServeOptions are the options of Serve.
type ServeOptions struct {
	// Token is the token that clients must know.
	Token Token
	// Gateway is the one beside the server; nil if there is none, and connections are carried only if something else
	// carries them.
	Gateway Gateway
	// Program serves connections in process; nil: nothing does.
	Program *Program
	// Log receives events. Default: discard.
	Log *slog.Logger
}

// Serve serves measurements on ln, one at a time, until ctx ends, and closes ln.
func Serve(ctx context.Context, ln net.Listener, o ServeOptions) error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &server{o: o, log: o.Log, slots: make(chan struct{}, maxConns), conns: map[net.Conn]bool{}, listens: newTurns(ln), turn: make(chan struct{}, 1)}
	stop := context.AfterFunc(ctx, func() { s.close(ln) })
	defer stop()
	err := s.accept(ctx)
	s.close(ln)
	s.wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serve: %w", err)
}

type server struct {
	o     ServeOptions
	log   *slog.Logger
	slots chan struct{}
	wg    sync.WaitGroup
	// listens controls whose turn it is to accept.
	listens *turns
	turn    chan struct{} // holds one element while a client measures

	received, sent, served atomic.Uint64

	mu      sync.Mutex         // guards everything below
	conns   map[net.Conn]bool  // true: at work for the session
	session *[sessionSize]byte // nil: no client measures
	working int                // connections at work
	closed  bool
}

// accept accepts connections while there is room; further ones are reset.
func (s *server) accept(ctx context.Context) error {
	defer close(s.listens.over)
	for {
		c, err := s.listens.accept(ctx)
		if err != nil {
			return err
		}
		select {
		case s.slots <- struct{}{}:
		default:
			reset(c)
			continue
		}
		if !s.hold(c) {
			return net.ErrClosed
		}
		s.wg.Go(func() {
			free := sync.OnceFunc(func() { <-s.slots })
			defer free()
			defer s.drop(c)
			if err := s.handle(ctx, c, free); err != nil {
				reset(c)
				s.log.Debug("connection refused", "remote", c.RemoteAddr(), "error", err)
			}
		})
	}
}

// reset ends a connection with a RST.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

func (s *server) hold(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return false
	}
	s.conns[c] = false
	return true
}

func (s *server) drop(c net.Conn) {
	s.mu.Lock()
	if s.conns[c] {
		s.working--
	}
	delete(s.conns, c)
	s.mu.Unlock()
	_ = c.Close()
}

func (s *server) close(ln net.Listener) {
	_ = ln.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
}

// handle determines the purpose of a connection. free makes room for another that has not sent an order yet.
func (s *server) handle(ctx context.Context, c net.Conn, free func()) error {
	if err := c.SetDeadline(time.Now().Add(firstWords)); err != nil {
		return err
	}
	var b [orderSize]byte
	if _, err := io.ReadFull(c, b[:openingSize]); err != nil {
		return err
	}
	switch {
	case string(b[:4]) == controlMagic && b[4] != controlVersion:
		return errors.Join(newTalk(c).refuse(fmt.Sprintf("the serving host speaks version %d", controlVersion)), malformed("version %d", b[4]))
	case string(b[:4]) == controlMagic:
		return s.control(ctx, c)
	case string(b[:4]) != dataMagic:
		return malformed("first bytes %x", b[:4])
	}
	if _, err := io.ReadFull(c, b[openingSize:]); err != nil {
		return err
	}
	o, err := parseOrder(b[:])
	if err != nil {
		return err
	}
	if !s.begin(c, o.session) {
		return malformed("order of no session")
	}
	free()
	s.served.Add(1)
	return s.execute(c, o)
}

// begin assigns a connection to its session; it returns false if that session is not active, or has enough connections.
func (s *server) begin(c net.Conn, id [sessionSize]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == nil || s.working >= min(maxWork, openFiles()-maxConns-spareFiles) || subtle.ConstantTimeCompare(s.session[:], id[:]) != 1 {
		return false
	}
	s.conns[c] = true
	s.working++
	return true
}

// enter makes a session the current one; it returns false if there is another. It waits a little, since the server may
// not have noticed the end of the last one yet.
func (s *server) enter(ctx context.Context, id *[sessionSize]byte) bool {
	late := time.NewTimer(enterWait)
	defer late.Stop()
	select {
	case s.turn <- struct{}{}:
	case <-late.C:
		return false
	case <-ctx.Done():
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session = id
	return true
}

// leave ends the session and its connections.
func (s *server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	<-s.turn
	s.session = nil
	for c, atWork := range s.conns {
		if atWork {
			reset(c)
		}
	}
}

// random returns a random secret.
func random[T ~[16]byte]() (v T) {
	b := [16]byte{}
	_, _ = rand.Read(b[:]) // never fails
	return T(b)
}
