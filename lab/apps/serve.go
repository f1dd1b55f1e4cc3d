package apps

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/sockaddr"
)

// Modes of servers, which say what they do with a connection:
//
//	echo      sends back what it reads, then its FIN after the client's
//	first     greets with [Banner], then echoes
//	transfer  the other side of the transfer client
//	rst       reads one byte, then resets
//	close     closes at once
//	hold      neither reads nor writes until the client is gone
//	sink      reads to the end, answers with the count as 8 bytes
//	bound     never accepts, as what keeps the published ports of a container
var serverModes = map[string]handler{
	"echo":     echo,
	"first":    greet,
	"transfer": serveTransfer,
	"rst":      serveReset,
	"close":    func(*net.TCPConn, *Event) error { return nil },
	"hold":     serveHold,
	"sink":     sink,
	"bound":    nil,
}

// handler serves a connection, and records in the event what it did.
type handler func(*net.TCPConn, *Event) error

// Banner is the greeting of a server in mode first.
const Banner = "220 ready\r\n"

type server struct {
	out   *printer
	tag   string // its name, which transfer reports
	quiet bool
	mptcp bool
	tfo   bool
	count atomic.Int64
}

// serve runs until it is killed. Its arguments are MODE=ADDRESS pairs.
func serve(args []string, p *printer) error {
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	s := &server{out: p}
	fs.BoolVar(&s.quiet, "quiet", false, "no events for connections")
	fs.StringVar(&s.tag, "tag", "", "transfer: a name, which clients are told with the addresses")
	fs.BoolVar(&s.mptcp, "mptcp", false, "MPTCP listeners")
	fs.BoolVar(&s.tfo, "tfo", false, "accept TCP Fast Open")
	if err := fs.Parse(args); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if fs.NArg() == 0 {
		return errUsage
	}
	return s.run(fs.Args(), func(arg string) (ln net.Listener, mode string, do handler, err error) {
		mode, addr, _ := strings.Cut(arg, "=")
		do, known := serverModes[mode]
		if !known {
			return nil, mode, nil, fmt.Errorf("mode %q: %w", mode, errUsage)
		}
		ln, err = s.listen(addr)
		return ln, mode, do, err
	})
}

// run listens as each argument says, and serves until it is killed.
func (s *server) run(args []string, listen func(arg string) (ln net.Listener, mode string, do handler, err error)) error {
	var all sync.WaitGroup
	for i, arg := range args {
		ln, mode, do, err := listen(arg)
		if err != nil {
			s.out.print(Event{Event: "result", Mode: mode, Failed: 1}.withError(err))
			return err
		}
		s.out.print(Event{Event: "listening", Mode: mode, ID: i, Local: addrText(ln.Addr())})
		all.Go(func() { s.acceptAll(ln, mode, do) })
	}
	all.Wait()
	return nil
}

func (s *server) listen(addr string) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		if !s.tfo {
			return nil
		}
		var err error
		ctlErr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_FASTOPEN, 64)
		})
		return errors.Join(ctlErr, err)
	}}
	lc.SetMultipathTCP(s.mptcp)
	return lc.Listen(context.Background(), "tcp", addr)
}

func (s *server) acceptAll(ln net.Listener, mode string, do handler) {
	for do == nil {
		_ = unix.Pause()
	}
	for {
		c, err := ln.Accept()
		if err != nil {
			s.out.print(Event{Event: "result", Mode: mode, Failed: 1}.withError(err))
			return
		}
		go s.handle(c.(*net.TCPConn), mode, do)
	}
}

func (s *server) handle(c *net.TCPConn, mode string, do handler) {
	e := Event{
		Mode: mode, ID: int(s.count.Add(1) - 1),
		Local: addrText(c.LocalAddr()), Remote: addrText(c.RemoteAddr()),
	}
	if !s.quiet {
		e.Event = "accepted"
		s.out.print(e)
	}
	if s.tag != "" {
		e.Server = &Server{Tag: s.tag, Local: e.Local, Remote: e.Remote}
	}
	start := time.Now()
	err := do(c, &e)
	_ = c.Close()
	e.Event, e.Micros = "closed", time.Since(start).Microseconds()
	// Even a quiet server reports errors.
	if e = e.withError(err); !s.quiet || e.Error != "" {
		s.out.print(e)
	}
}

// echo copies in user space. io.Copy would splice within the kernel, which most servers do not do.
func echo(c *net.TCPConn, e *Event) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		e.Received += int64(n)
		if n > 0 {
			m, err := c.Write(buf[:n])
			e.Sent += int64(m)
			if err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return c.CloseWrite()
		}
		if err != nil {
			return err
		}
	}
}

func greet(c *net.TCPConn, e *Event) error {
	if _, err := io.WriteString(c, Banner); err != nil {
		return err
	}
	return echo(c, e)
}

func serveReset(c *net.TCPConn, _ *Event) error {
	_, err := c.Read(make([]byte, 1))
	reset(c)
	return err
}

// serveHold waits for the client's end without reading what it has sent: the kernel reports a hang-up or an error, not
// readability.
func serveHold(c *net.TCPConn, _ *Event) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var revents int16
		err := raw.Control(func(fd uintptr) {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
			_, _ = unix.Poll(p, 100)
			revents = p[0].Revents
		})
		switch {
		case err != nil:
			return err
		case revents&unix.POLLERR != 0:
			return pollError(raw)
		case revents&(unix.POLLHUP|unix.POLLRDHUP) != 0:
			return nil
		}
	}
}

func pollError(raw syscall.RawConn) error {
	var err error
	ctlErr := raw.Control(func(fd uintptr) { err = sockaddr.Err(int(fd)) })
	return errors.Join(ctlErr, err)
}

func sink(c *net.TCPConn, e *Event) error {
	buf := make([]byte, 256<<10)
	for {
		n, err := c.Read(buf)
		e.Received += int64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	count := slices.Clone(be64(uint64(e.Received)))
	_, err := c.Write(count)
	return err
}
