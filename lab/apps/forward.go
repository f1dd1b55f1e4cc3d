package apps

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// forwardPatience bounds a proxy's dial.
const forwardPatience = time.Minute

// forward is a proxy to which connections are redirected (a sidecar). It dials the address for which they were meant,
// and copies both directions, each to its end:
//
//	forward [-tproxy] [-from4 ADDRESS] [-from6 ADDRESS] [-as-client] [-mark MARK] [-to ADDRESS] ADDRESS...
func forward(args []string, out *printer) error {
	var p proxy
	fs := flag.NewFlagSet("forward", flag.ContinueOnError)
	fs.BoolVar(&p.tproxy, "tproxy", false, "connections come by TPROXY")
	fs.StringVar(&p.from4, "from4", "", "dial IPv4 from here")
	fs.StringVar(&p.from6, "from6", "", "dial IPv6 from here")
	fs.BoolVar(&p.asClient, "as-client", false, "dial from the address of the client, by another port")
	fs.IntVar(&p.mark, "mark", 0, "of packets to whom is dialled")
	fs.StringVar(&p.to, "to", "", "dial this, whomever they were meant for")
	if err := fs.Parse(args); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	s := &server{out: out, quiet: true}
	return s.run(fs.Args(), func(address string) (ln net.Listener, mode string, do handler, err error) {
		ln, err = p.listen(address)
		return ln, "forward", p.pass, err
	})
}

type proxy struct {
	tproxy, asClient bool
	from4, from6, to string
	mark             int
}

func (p proxy) listen(address string) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) error {
		if !p.tproxy {
			return nil
		}
		return set(c, transparent(network))
	}}
	lc.SetMultipathTCP(false)
	return lc.Listen(context.Background(), "tcp", address)
}

// option is a socket option to set to a number.
type option struct{ level, name, value int }

// transparent permits a socket to have addresses that are not the host's.
func transparent(network string) option {
	if network == "tcp6" {
		return option{unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1}
	}
	return option{unix.SOL_IP, unix.IP_TRANSPARENT, 1}
}

func set(c syscall.RawConn, o option) (err error) {
	ctlErr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), o.level, o.name, o.value) })
	return errors.Join(ctlErr, err)
}

// pass forwards one connection. If the server cannot be reached, it resets the client.
func (p proxy) pass(in *net.TCPConn, _ *Event) error {
	meant := p.to
	if meant == "" {
		var err error
		if meant, err = p.meant(in); err != nil {
			reset(in)
			return err
		}
	}
	out, err := p.dial(meant, in)
	if err != nil {
		reset(in)
		return err
	}
	defer out.Close()
	var both sync.WaitGroup
	both.Go(func() { pump(out, in) })
	both.Go(func() { pump(in, out) })
	both.Wait()
	return nil
}

func pump(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		reset(to)
		return
	}
	_ = to.CloseWrite()
}

func (p proxy) dial(to string, in *net.TCPConn) (*net.TCPConn, error) {
	source, err := p.source(to, in)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: forwardPatience, Control: func(network, _ string, c syscall.RawConn) error {
		if p.asClient {
			if err := set(c, transparent(network)); err != nil {
				return err
			}
		}
		if p.mark != 0 {
			return set(c, option{unix.SOL_SOCKET, unix.SO_MARK, p.mark})
		}
		return nil
	}}
	if source.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	d.SetMultipathTCP(false)
	c, err := d.Dial("tcp", to)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// source returns the address from which to connect, or none to let the kernel choose.
func (p proxy) source(to string, in *net.TCPConn) (netip.Addr, error) {
	if p.asClient {
		return in.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap(), nil
	}
	addr, err := netip.ParseAddrPort(to)
	if err != nil {
		return netip.Addr{}, err
	}
	from := p.from4
	if addr.Addr().Is6() {
		from = p.from6
	}
	if from == "" {
		return netip.Addr{}, nil
	}
	return netip.ParseAddr(from)
}

// meant returns the address for which a connection was meant: with TPROXY its local address, otherwise what connection
// tracking remembers.
func (p proxy) meant(c *net.TCPConn) (to string, err error) {
	if p.tproxy {
		return addrText(c.LocalAddr()), nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return "", err
	}
	local := c.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	ctlErr := raw.Control(func(fd uintptr) { to, err = originalDestination(int(fd), local.Is4()) })
	if ctlErr != nil {
		return "", ctlErr
	}
	return to, err
}

// originalDestination queries SO_ORIGINAL_DST. Its structures have the size and layout of other options that package
// unix can read.
func originalDestination(fd int, v4 bool) (string, error) {
	if v4 {
		a, err := unix.GetsockoptIPv6Mreq(fd, unix.SOL_IP, unix.SO_ORIGINAL_DST)
		if err != nil {
			return "", err
		}
		b := a.Multiaddr // struct sockaddr_in
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3])).String(), nil
	}
	a, err := unix.GetsockoptIPv6MTUInfo(fd, unix.SOL_IPV6, unix.SO_ORIGINAL_DST)
	if err != nil {
		return "", err
	}
	port := a.Addr.Port // in network order
	return netip.AddrPortFrom(netip.AddrFrom16(a.Addr.Addr), port<<8|port>>8).String(), nil
}
