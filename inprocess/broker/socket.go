package broker

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
)

// SocketError reports a socket that came with a question and cannot be promoted.
type SocketError struct {
	What string // the property at fault
	Why  inprocess.Why
	Err  error
}

// Error says what is wrong with the socket.
func (e *SocketError) Error() string { return fmt.Sprintf("socket: %s: %v (%s)", e.What, e.Err, e.Why) }

// Unwrap returns the kernel's error.
func (e *SocketError) Unwrap() error { return e.Err }

// tcpEstablished is a state of tcp_info.
const tcpEstablished = 1

// examine reads a socket's properties from the kernel; says is the side that the library claims. The descriptor stays
// the caller's.
func examine(fd int, says Role, n Namer) (s Socket, err error) {
	if err := isTCP(fd); err != nil {
		return s, err
	}
	local, err := unix.Getsockname(fd)
	if err != nil {
		return s, &SocketError{"address", inprocess.WhyNoPeer, err}
	}
	remote, err := unix.Getpeername(fd)
	if err != nil {
		return s, &SocketError{"address of the peer", inprocess.WhyNoPeer, err}
	}
	s.Local, s.Remote = addrPort(local), addrPort(remote)
	if s.Cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE); err != nil {
		return s, &SocketError{"cookie", inprocess.WhyNoPeer, err}
	}
	if s.Netns, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil { // before Linux 5.14
		return s, &SocketError{"cookie of the network namespace", inprocess.WhyNoPeer, err}
	}
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return s, &SocketError{"state", inprocess.WhyNoPeer, err}
	}
	if info.State != tcpEstablished {
		return s, &SocketError{"state", inprocess.WhyNoPeer, fmt.Errorf("%d is not established", info.State)}
	}
	s.Role = roleAt(fd, info, says)
	if n != nil {
		if mine, peer, client, err := n.Of(fd, s.Role == RoleClient); err == nil {
			s.Sequences, s.Named, s.Role = Sequences{mine, peer}, true, RoleServer
			if client {
				s.Role = RoleClient
			}
		}
	}
	return s, nil
}

// looks is how often the counts of a socket are read until two readings agree.
const looks = 16

// roleAt tells the side of a socket by the kernel's counts, taken at one moment. The client's SYN counts as an
// acknowledged byte, but not as a sent one; so acknowledged and in-flight bytes together exceed the sent ones by 1 at
// the client. If the counts are inconclusive, roleAt returns says.
func roleAt(fd int, info *unix.TCPInfo, says Role) Role {
	for range looks {
		queued, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		if err != nil {
			return says
		}
		was := counted(info)
		if info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err != nil {
			return says
		}
		if counted(info) != was {
			continue
		}
		underWay := uint64(queued) - uint64(info.Notsent_bytes)
		switch info.Bytes_acked + underWay - (info.Bytes_sent - info.Bytes_retrans) {
		case 0:
			return RoleServer
		case 1:
			return RoleClient
		}
		return says
	}
	return says
}

// counts are counters of a socket that only grow, except notSent.
type counts struct {
	acked, sent, retrans uint64
	notSent              uint32
}

func counted(i *unix.TCPInfo) counts {
	return counts{i.Bytes_acked, i.Bytes_sent, i.Bytes_retrans, i.Notsent_bytes}
}

func isTCP(fd int) error {
	for _, o := range []struct {
		level, option int
		want          []int
		what          string
	}{
		{unix.SOL_SOCKET, unix.SO_DOMAIN, []int{unix.AF_INET, unix.AF_INET6}, "family"},
		{unix.SOL_SOCKET, unix.SO_TYPE, []int{unix.SOCK_STREAM}, "type"},
		{unix.SOL_SOCKET, unix.SO_PROTOCOL, []int{unix.IPPROTO_TCP}, "protocol"},
	} {
		got, err := unix.GetsockoptInt(fd, o.level, o.option)
		if err != nil {
			return &SocketError{o.what, inprocess.WhyProtocol, err} // not even a socket
		}
		if !slices.Contains(o.want, got) {
			return &SocketError{o.what, inprocess.WhyOption, fmt.Errorf("%d is not that of TCP", got)}
		}
	}
	return nil
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		ip := netip.AddrFrom16(a.Addr).Unmap()
		if a.ZoneId != 0 && ip.Is6() {
			ip = ip.WithZone(strconv.FormatUint(uint64(a.ZoneId), 10))
		}
		return netip.AddrPortFrom(ip, uint16(a.Port))
	}
	return netip.AddrPort{}
}

// whyOf returns the reason in an error of examine.
func whyOf(err error) inprocess.Why {
	if e := (*SocketError)(nil); errors.As(err, &e) {
		return e.Why
	}
	return inprocess.WhyProtocol
}
