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

// control serves a control connection.
func (s *server) control(ctx context.Context, c net.Conn) error {
	session := random[[sessionSize]byte]()
	ctl, out := newServing(s.o.Token, random[[nonceSize]byte](), session)
	sess := &served{s: s, c: c, ctl: ctl, id: &session}
	defer sess.end()
	var buf [1024]byte
	for {
		if _, err := c.Write(out); err != nil {
			return err
		}
		n, err := c.Read(buf[:])
		if err != nil {
			return nil // the other side went, or is silent: no complaint
		}
		out, err = ctl.receive(buf[:n], func(m message) { sess.got(ctx, m) })
		out = append(out, sess.out...)
		sess.out = nil
		if err == nil {
			err = sess.err
		}
		if err != nil {
			return errors.Join(finish(c, out), err)
		}
		if !sess.open {
			continue // the first words are to come in their time, however small their pieces
		}
		if err := c.SetDeadline(time.Now().Add(controlIdle)); err != nil {
			return err
		}
	}
}

// finish says last words so that they arrive: a reset would overtake them.
func finish(c net.Conn, out []byte) error {
	_, err := c.Write(out)
	if t, ok := c.(*net.TCPConn); ok {
		err = errors.Join(err, t.CloseWrite())
	}
	_, _ = c.Read(make([]byte, 1)) // until the other side has read them
	return err
}

// served is a session at the server.
type served struct {
	s    *server
	c    net.Conn
	ctl  *control
	id   *[sessionSize]byte
	open bool
	held Held // nil: no trial
	pid  int  // of the daemon
	lone bool // there is none
	out  []byte
	err  error
}

func (s *served) got(ctx context.Context, m message) {
	switch m := m.(type) {
	case hello:
		if !s.s.enter(s.id) {
			s.out = appendMessage(s.out, refusal{refusedBusy, "another host measures now"})
			s.err = errors.New("another host measures now")
			return
		}
		s.open = true
		s.s.log.Info("measurement begins", "remote", s.c.RemoteAddr())
		s.out = append(s.out, s.ctl.welcome(s.begin(ctx))...)
	case sample:
		s.renew(ctx)
		s.out = appendMessage(s.out, reading{
			id: m.id, ownCPU: ownCPU(), gatewayCPU: s.gatewayCPU(),
			received: s.s.received.Load(), sent: s.s.sent.Load(), conns: s.s.served.Load(),
		})
	case weigh:
		s.out = appendMessage(s.out, weight{m.id, weighed(ctx, s.s.o.Gateway)})
	default:
		s.err = malformed("message of type %d out of place", m.kind())
	}
}

// begin has the gateway beside us take what the client will offer, on our port
// from its address. It returns what stands against it.
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
	s.held, err = try(ctx, g, config.Trial{Peer: remote.Addr(), Port: local.Port(), Action: report.ActionAccelerate})
	if err != nil {
		s.s.log.Warn("no trial", "error", err)
		return trialNote(err, "the serving host")
	}
	return ""
}

// renew begins the trial again if it ended: daemons are restarted, and bound
// the life of a trial.
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

// gatewayCPU is the meter of the daemon.
func (s *served) gatewayCPU() uint64 {
	if s.lone {
		return 0
	}
	return processCPU(s.pid)
}

// trialNote says why a gateway does not do what a measurement needs.
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

// end leaves nothing of the session.
func (s *served) end() {
	if s.held != nil {
		s.held.Close()
	}
	if s.open {
		s.s.leave()
		s.s.log.Info("measurement ends", "remote", s.c.RemoteAddr())
	}
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
