package bench

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
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

// execute does the server's part of a work. It always ends: at the end of what the client sends, or when the work's
// time and the grace are over.
func (s *server) execute(c net.Conn, o order) error {
	if err := c.SetDeadline(time.Now().Add(o.time + grace)); err != nil {
		return err
	}
	switch o.work {
	case workUpload:
		return s.upload(c)
	case workDownload:
		return s.download(c, o.time)
	case workEcho:
		return s.echo(c)
	default:
		n, err := c.Write(make([]byte, o.size))
		s.sent.Add(uint64(n))
		return err
	}
}

func (s *server) upload(c net.Conn) error {
	buf := make([]byte, blockSize)
	var total uint64
	for {
		n, err := c.Read(buf)
		total += uint64(n)
		s.received.Add(uint64(n))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	_, err := c.Write(binary.BigEndian.AppendUint64(nil, total))
	return err
}

func (s *server) download(c net.Conn, d time.Duration) error {
	buf := make([]byte, blockSize)
	for end := time.Now().Add(d); ; {
		n, err := c.Write(buf) // at least once, however slow this host is
		s.sent.Add(uint64(n))
		if err != nil || !time.Now().Before(end) {
			return err
		}
	}
}

func (s *server) echo(c net.Conn) error {
	buf := make([]byte, blockSize)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			s.received.Add(uint64(n))
			if _, err := c.Write(buf[:n]); err != nil {
				return err
			}
			s.sent.Add(uint64(n))
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// control serves a control connection: the first messages must arrive in time, however small the pieces.
func (s *server) control(ctx context.Context, c net.Conn) error {
	t := newTalk(c)
	ours, session := random[[nonceSize]byte](), random[[sessionSize]byte]()
	if err := t.send(message{Nonce: ours[:]}); err != nil {
		return err
	}
	hello, err := t.receive()
	if err != nil {
		return protocol(err)
	}
	if len(hello.Nonce) == 0 || len(hello.Proof) == 0 {
		return malformed("no proof")
	}
	theirs := [nonceSize]byte(hello.Nonce)
	if !equal([proofSize]byte(hello.Proof), s.o.Token.proof(measuring, ours, theirs)) {
		return errors.Join(t.refuse("the token is not the one that smcgw bench --serve printed"), malformed("wrong token"))
	}
	if !s.enter(ctx, &session) {
		const busy = "another host measures now"
		return errors.Join(t.refuse(busy), errors.New(busy))
	}
	sess := &served{s: s, c: c, id: session}
	defer sess.end()
	s.log.Info("measurement begins", "remote", c.RemoteAddr())
	proof := s.o.Token.proof(serving, ours, theirs)
	answer := message{Proof: proof[:], Session: session[:], Note: sess.begin(ctx), NoProgram: s.o.Program.missing()}
	for {
		if err := c.SetDeadline(time.Now().Add(controlIdle)); err != nil {
			return err
		}
		if err := t.send(answer); err != nil {
			return err
		}
		asked, err := t.receive()
		if err != nil {
			return protocol(err)
		}
		if answer, err = sess.answer(ctx, asked.Ask); err != nil {
			return err
		}
	}
}

// protocol filters errors for the log: that the other side left, or is silent, is not reported.
func protocol(err error) error {
	if errors.Is(err, ErrProtocol) {
		return err
	}
	return nil
}

// refuse sends a refusal so that it arrives: a reset would overtake it.
func (t *talk) refuse(why string) error {
	err := t.send(message{Refused: why})
	if c, ok := t.Conn.(*net.TCPConn); ok {
		err = errors.Join(err, c.CloseWrite())
	}
	_, _ = t.Read(make([]byte, 1)) // until the other side has read it
	return err
}

// served is a session at the server.
type served struct {
	s    *server
	c    net.Conn
	held Held // nil: no trial
	pid  int  // of the daemon
	lone bool // there is no daemon
	id   [sessionSize]byte
	away func() // ends the program that serves; nil: the server does
}

func (s *served) answer(ctx context.Context, ask question) (message, error) {
	switch ask {
	case askMeters:
		s.renew(ctx)
		return message{Meters: &reading{
			OwnCPU: ownCPU(), GatewayCPU: s.gatewayCPU(),
			Received: s.s.received.Load(), Sent: s.s.sent.Load(), Conns: s.s.served.Load(),
		}}, nil
	case askMemory:
		m := weighed(ctx, s.s.o.Gateway)
		return message{Memory: &m}, nil
	case askProgram, askLibrary, askOwn:
		s.takeBack()
		return message{Note: s.handOver(ctx, ask)}, nil
	default:
		return message{}, malformed("question %q", ask)
	}
}

// handOver makes the program serve, if asked to. It returns why it does not.
func (s *served) handOver(ctx context.Context, ask question) (note string) {
	if ask == askOwn {
		return ""
	}
	var err error
	if s.away, err = s.s.o.Program.serve(ctx, s.s.listens, s.id, ask == askLibrary); err != nil {
		return err.Error()
	}
	return ""
}

// takeBack makes the server serve again.
func (s *served) takeBack() {
	if s.away != nil {
		s.away()
		s.away = nil
	}
}

// begin makes the gateway beside us accept what the client will offer, on our port from its address. It returns what
// prevents that.
func (s *served) begin(ctx context.Context) (note string) {
	g := s.s.o.Gateway
	if g == nil {
		s.lone = true
		return "no gateway on the serving host"
	}
	local, remote, err := ends(s.c)
	if err != nil {
		return err.Error()
	}
	s.pid, err = g.DaemonPID(ctx)
	s.lone = errors.Is(err, admin.ErrDaemonUnreachable)
	s.held, err = g.Try(ctx, config.Trial{Peer: remote.Addr(), Port: local.Port(), Action: report.ActionAccelerate})
	if err != nil {
		s.s.log.Warn("no trial", "error", err)
		return trialNote(err, "the serving host")
	}
	return ""
}

// renew starts the trial again if it has ended: daemons are restarted, and limit the life of a trial.
func (s *served) renew(ctx context.Context) {
	if s.held == nil {
		return
	}
	select {
	case <-s.held.Done():
		s.held = nil
		s.begin(ctx)
	default:
	}
}

// gatewayCPU returns the CPU time of the daemon.
func (s *served) gatewayCPU() uint64 {
	if s.lone {
		return 0
	}
	return processCPU(s.pid)
}

// trialNote explains why a gateway does not do what a measurement needs.
func trialNote(err error, where string) string {
	switch {
	case errors.Is(err, admin.ErrDaemonUnreachable):
		return "no gateway on " + where
	case errors.Is(err, os.ErrPermission):
		return "the gateway on " + where + " permits trials to root and its own user only"
	default:
		return fmt.Sprintf("the gateway on %s: %v", where, err)
	}
}

// end releases everything of the session.
func (s *served) end() {
	s.takeBack()
	if s.held != nil {
		s.held.Close()
	}
	s.s.leave()
	s.s.log.Info("measurement ends", "remote", s.c.RemoteAddr())
}

// ends returns the addresses of a connection.
func ends(c net.Conn) (local, remote netip.AddrPort, err error) {
	l, ok := c.LocalAddr().(*net.TCPAddr)
	r, ok2 := c.RemoteAddr().(*net.TCPAddr)
	if !ok || !ok2 {
		return local, remote, errors.New("not a TCP connection")
	}
	local, remote = l.AddrPort(), r.AddrPort()
	return netip.AddrPortFrom(local.Addr().Unmap(), local.Port()), netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port()), nil
}
