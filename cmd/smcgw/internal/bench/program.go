package bench

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/smcgw/smcgw/gateway/report"
)

// Program is smcgw-load, which does works in place of this program, because a Go program cannot have the library.
type Program struct {
	// Path is its path, Env its environment with the library. Without the library it gets this process's environment.
	Path string
	Env  []string
	// Missing is why there is none; empty: there is one.
	Missing string
}

// ErrProgram is wrapped by the errors of [Program].
var ErrProgram = errors.New("smcgw-load")

// missing returns why the program cannot be started; for nil: there is none.
func (p *Program) missing() string {
	if p == nil {
		return "there is no smcgw-load"
	}
	return p.Missing
}

// programPatience is how long a program may take to end or start.
const programPatience = 10 * time.Second

// running is a started program.
type running struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// start starts the program. The end of ctx, or of this process, ends it.
func (p *Program) start(ctx context.Context, library bool, files []*os.File, args ...string) (*running, error) {
	if why := p.missing(); why != "" {
		return nil, fmt.Errorf("%w: %s", ErrProgram, why)
	}
	r := &running{cmd: exec.CommandContext(ctx, p.Path, args...)}
	r.cmd.ExtraFiles, r.cmd.WaitDelay, r.cmd.Stderr = files, time.Second, os.Stderr
	if library {
		r.cmd.Env = p.Env
	}
	in, err := r.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProgram, err)
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProgram, err)
	}
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProgram, err)
	}
	r.in, r.out = in, bufio.NewScanner(out)
	return r, nil
}

// next returns the program's next message, or why there is none.
func (r *running) next() (word, rest string, err error) {
	if !r.out.Scan() {
		return "", "", fmt.Errorf("%w: it has ended: %w", ErrProgram, errors.Join(io.ErrUnexpectedEOF, r.out.Err()))
	}
	word, rest, _ = strings.Cut(r.out.Text(), " ")
	if word == "error" {
		return "", "", fmt.Errorf("%w: %s", ErrProgram, rest)
	}
	return word, rest, nil
}

// end tells the program to end and waits for that.
func (r *running) end() {
	_ = r.in.Close()
	late := time.AfterFunc(programPatience, func() { _ = r.cmd.Process.Kill() })
	defer late.Stop()
	_ = r.cmd.Wait() // its output has been read
}

// turns shares a listening socket between a server and its program.
type turns struct {
	net.Listener
	over    chan struct{}      // closed when the server will accept no more
	passed  chan chan struct{} // from the server, which does not accept until the received channel is closed
	waiting chan struct{}      // not empty: the server should pass its turn
}

func newTurns(ln net.Listener) *turns {
	return &turns{ln, make(chan struct{}), make(chan chan struct{}), make(chan struct{}, 1)}
}

// accept accepts for the server. It waits while the program has its turn.
func (t *turns) accept(ctx context.Context) (net.Conn, error) {
	for {
		c, err := t.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return c, err
		}
		select {
		case <-t.waiting:
		case <-ctx.Done():
			return nil, err
		}
		back := make(chan struct{})
		select {
		case t.passed <- back:
		case <-ctx.Done():
			return nil, err
		}
		select {
		case <-back:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// pass takes the server's turn until back is called, and returns the socket.
func (t *turns) pass(ctx context.Context) (socket *os.File, back func(), err error) {
	ln, ok := t.Listener.(*net.TCPListener)
	if !ok {
		return nil, nil, fmt.Errorf("%w: no socket of TCP", ErrProgram)
	}
	if err := ln.SetDeadline(time.Unix(1, 0)); err != nil {
		return nil, nil, err
	}
	t.waiting <- struct{}{}
	var accepts chan struct{}
	select {
	case accepts = <-t.passed:
	case <-t.over:
		return nil, nil, net.ErrClosed
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	back = func() {
		_ = ln.SetDeadline(time.Time{}) // an error means that it was closed
		close(accepts)
	}
	if socket, err = ln.File(); err != nil {
		back()
		return nil, nil, err
	}
	return socket, back, nil
}

// serve makes the program serve the orders of a session until away is called.
func (p *Program) serve(ctx context.Context, t *turns, session [sessionSize]byte, library bool) (away func(), err error) {
	socket, back, err := t.pass(ctx)
	if err != nil {
		return nil, err
	}
	r, err := p.start(ctx, library, []*os.File{socket}, "serve")
	// Passing a descriptor puts it into blocking mode, for both processes.
	err = errors.Join(err, syscall.SetNonblock(int(socket.Fd()), true), socket.Close())
	if r != nil && err == nil {
		err = r.ready(session)
	}
	if err != nil {
		if r != nil {
			r.end()
		}
		back()
		return nil, err
	}
	return func() {
		r.end()
		back()
	}, nil
}

// ready waits until the program serves.
func (r *running) ready(session [sessionSize]byte) error {
	late := time.AfterFunc(programPatience, func() { _ = r.cmd.Process.Kill() })
	defer late.Stop()
	if _, err := fmt.Fprintf(r.in, "%x\n", session); err != nil {
		return fmt.Errorf("%w: %w", ErrProgram, err)
	}
	if word, _, err := r.next(); err != nil || word != "ready" {
		return errors.Join(err, fmt.Errorf("%w: %q in place of ready", ErrProgram, word))
	}
	return nil
}

// loading makes programs do the works of a measuring host.
type loading struct {
	program *Program
	library bool
}

// do does a work on one connection. An upload also ends with over, and calls flowing once it has lasted a while; both
// may be nil. The gateway beside us is asked about the connection before it ends.
func (l *loading) do(ctx context.Context, s *session, w work, d time.Duration, over <-chan struct{}, flowing func()) (measured, error) {
	m := measured{began: time.Now(), latency: hdrhistogram.New(1, int64(time.Minute), 3)}
	r, err := l.program.start(ctx, l.library, nil)
	if err != nil {
		return m, err
	}
	defer r.end()
	late := time.AfterFunc(d+2*grace, func() { _ = r.cmd.Process.Kill() })
	defer late.Stop()
	if _, err := fmt.Fprintln(r.in, s.to.Addr(), s.to.Port(), s.ports.low, s.ports.high, w, d.Milliseconds(), hex.EncodeToString(s.id[:])); err != nil {
		return m, fmt.Errorf("%w: %w", ErrProgram, err)
	}
	for {
		word, rest, err := r.next()
		if err != nil {
			return m, interrupted(ctx, err)
		}
		switch word {
		case "connected":
			if err := m.connected(rest, s.to); err != nil {
				return m, err
			}
			if over != nil {
				ended := make(chan struct{})
				defer close(ended)
				go r.endWith(over, ended)
			}
		case "begins":
			if flowing != nil {
				defer time.AfterFunc(ahead, flowing).Stop()
			}
		case "latency":
			var ns, n int64
			if _, err := fmt.Sscan(rest, &ns, &n); err != nil {
				return m, fmt.Errorf("%w: latency %q: %w", ErrProgram, rest, err)
			}
			if err := m.latency.RecordValues(max(1, ns), n); err != nil {
				return m, fmt.Errorf("round trip: %w", err)
			}
		case "done":
			if _, err := fmt.Sscan(rest, &m.bytes, (*int64)(&m.elapsed), &m.count); err != nil {
				return m, fmt.Errorf("%w: done %q: %w", ErrProgram, rest, err)
			}
			return m, m.look(ctx, s.own)
		default:
			return m, fmt.Errorf("%w: says %q", ErrProgram, word)
		}
	}
}

// connected records the connection, given its own end.
func (m *measured) connected(own string, to netip.AddrPort) error {
	host, port, _ := strings.Cut(own, " ")
	local, err := netip.ParseAddrPort(net.JoinHostPort(host, port))
	if err != nil {
		return fmt.Errorf("%w: connected %q: %w", ErrProgram, own, err)
	}
	m.conns = append(m.conns, tuple{netip.AddrPortFrom(local.Addr().Unmap(), local.Port()), to})
	return nil
}

// endWith tells an upload to end.
func (r *running) endWith(over, ended <-chan struct{}) {
	select {
	case <-over:
		_, _ = r.in.Write([]byte{'\n'}) // an error means that it has ended
	case <-ended:
	}
}

// look asks the gateway about connections while they are open, because it forgets those that were never promoted.
func (m *measured) look(ctx context.Context, g Gateway) error {
	if g == nil {
		return nil
	}
	list, err := g.Conns(ctx, report.ConnQuery{All: true})
	if err != nil {
		return err
	}
	for _, info := range list.Conns {
		for _, t := range m.conns {
			if (tuple{info.Local, info.Remote}) == t {
				m.seen = append(m.seen, info)
			}
		}
	}
	return nil
}
