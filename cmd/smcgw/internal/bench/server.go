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
	maxConns = 128 // that have not said what they are for, and sessions
	// maxWork bounds the connections of the session.
	maxWork = maxIdle + 64
	// firstWords is the time a connection has to say what it is for.
	firstWords = 5 * time.Second
	// enterWait is how long a client waits for the end of another's session: less than firstWords.
	enterWait = 4 * time.Second
	// controlIdle is how long a session may be silent.
	controlIdle = 2 * time.Minute
	// grace is what a work may take beyond its own time.
	grace = 10 * time.Second
	// blockSize is that of reads and writes in bulk.
	blockSize = 128 << 10
)

// ServeOptions are what a server needs.
type ServeOptions struct {
	// Token is what clients must know.
	Token Token
	// Gateway is the one beside the server. nil if none, and connections
	// are carried if something else carries them.
	Gateway Gateway
	// Program serves connections that are to go in process. nil: nothing does.
	Program *Program
	// Log receives what happens. Default: discards.
	Log *slog.Logger
}

// Serve serves measurements on ln, one at a time, until ctx ends, and closes
// it.
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
	// listens says whose turn it is to accept.
	listens *turns
	turn    chan struct{} // has one word while a client measures

	received, sent, served atomic.Uint64

	mu      sync.Mutex         // guards everything below
	conns   map[net.Conn]bool  // true: at work for the session
	session *[sessionSize]byte // nil: no client measures
	working int                // connections at work
	closed  bool
}

// accept takes connections while there is room; one more is reset.
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

// reset ends a connection without a word.
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

// handle finds out what a connection is for. free makes room for another that has not
// said so.
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

// begin gives a connection to the session it names; false if that session is
// not under way, or has enough.
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

// enter makes a session the one of the server; false if there is another. The
// server may be about to notice that the last one is over, so enter waits a little.
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

// leave ends the session, and what it still has under way.
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

// random fills a secret.
func random[T ~[16]byte]() (v T) {
	b := [16]byte{}
	_, _ = rand.Read(b[:]) // never fails
	return T(b)
}
