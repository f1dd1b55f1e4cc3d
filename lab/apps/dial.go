package apps

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/sockaddr"
)

// dialer opens client sockets with plain system calls, because package net hides, or decides on its own about, the
// exact errno, IPv4 peers through IPv6 sockets, MPTCP and TCP Fast Open.
type dialer struct {
	bind    netip.AddrPort // local address, port 0 for any
	mapped  bool           // IPv4 peer through an AF_INET6 socket
	mptcp   bool
	tfo     bool
	timeout time.Duration // give up and close after this time; 0: the kernel's own limit
}

// dial connects, and returns how long connect() took. The error wraps the errno that connect(2) returned or would have
// returned.
func (d dialer) dial(to netip.AddrPort) (*net.TCPConn, time.Duration, error) {
	family := unix.AF_INET6
	if to.Addr().Is4() && !d.mapped {
		family = unix.AF_INET
	}
	proto := 0
	if d.mptcp {
		proto = unix.IPPROTO_MPTCP
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	if err != nil {
		return nil, 0, os.NewSyscallError("socket", err)
	}
	if err := d.prepare(fd, family); err != nil {
		_ = unix.Close(fd)
		return nil, 0, err
	}
	start := time.Now()
	err = unix.Connect(fd, of(family, to))
	if errors.Is(err, unix.EINPROGRESS) {
		err = d.await(fd)
	}
	took := time.Since(start)
	if err != nil {
		_ = unix.Close(fd)
		return nil, took, os.NewSyscallError("connect", err)
	}
	conn, err := toConn(fd)
	return conn, took, err
}

func toConn(fd int) (*net.TCPConn, error) {
	f := os.NewFile(uintptr(fd), "tcp")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("adopt socket: %w", err)
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		_ = conn.Close()
		return nil, fmt.Errorf("adopt socket: a %T", conn)
	}
	return tcp, nil
}

// prepare sets the options of a socket and binds it.
func (d dialer) prepare(fd, family int) error {
	if d.tfo {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	if !d.bind.IsValid() {
		return nil
	}
	if d.bind.Port() != 0 { // a port chosen by the kernel must be unused
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return os.NewSyscallError("bind", unix.Bind(fd, of(family, d.bind)))
}

// of returns an address for a socket of a family. As16 returns an IPv4 address in its mapped form.
func of(family int, a netip.AddrPort) unix.Sockaddr {
	if family == unix.AF_INET6 {
		a = netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
	}
	return sockaddr.Of(a)
}

// errGaveUp is a decision of the application, not of the network.
var errGaveUp = errors.New("gave up connecting")

// await waits for the outcome of a connect in progress. For an ICMP error over IPv4 the kernel first signals that there
// is an error, and only then sets it (ip_icmp_error, tcp_v4_err). So no error means a connection only if the SYN was
// acknowledged.
func (d dialer) await(fd int) error {
	deadline := time.Now().Add(d.timeout)
	for {
		wait := -1
		if d.timeout > 0 {
			if wait = int(time.Until(deadline).Milliseconds()); wait < 0 {
				return errGaveUp
			}
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, wait)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n == 0:
			return errGaveUp
		}
		if err := sockaddr.Err(fd); err != nil {
			return err
		}
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil || info.Bytes_acked > 0 {
			return err
		}
	}
}

// addrText formats an address with IPv4 unmapped.
func addrText(a net.Addr) string {
	switch a := a.(type) {
	case *net.TCPAddr:
		return plainText(a.AddrPort())
	case *net.UDPAddr:
		return plainText(a.AddrPort())
	default:
		return ""
	}
}

func plainText(a netip.AddrPort) string {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port()).String()
}

// reset closes a connection with a RST.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
