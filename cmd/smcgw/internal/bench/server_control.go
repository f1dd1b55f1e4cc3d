package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

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
