package socket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/rsocket"
)

// udpSocket is the UDP socket of a datagram socket. If it is bound to no address, it reports the address that a
// datagram was sent to, and sends from the address it is given, which is the one that the peer knows. The trap: only
// one goroutine, the receiver, may call Receive and Answer. Any goroutine may call Send; calls of Send are serialized.
type udpSocket struct {
	UDP   *net.UDPConn
	Local netip.AddrPort
	Wild  bool            // not bound to an address
	raw   syscall.RawConn // of UDP

	oob     [128]byte                       // of the receiver
	reply   [rsocket.ResolveHeader6Len]byte // of the receiver
	dropped atomic.Uint32                   // datagrams dropped for a full buffer, as the kernel reported

	mu  sync.Mutex // guards everything below
	buf []byte
}

// Open takes the socket over and sets its options.
func (s *udpSocket) Open(udp *net.UDPConn) error {
	s.UDP, s.Local = udp, unmapped(udp.LocalAddr().(*net.UDPAddr).AddrPort())
	s.Wild = s.Local.Addr().IsUnspecified()
	options := []struct {
		level, option int
		wanted        bool
	}{
		{unix.SOL_SOCKET, unix.SO_RXQ_OVFL, true},
		{unix.IPPROTO_IP, unix.IP_PKTINFO, s.Wild && s.Local.Addr().Is4()},
		{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, s.Wild && s.Local.Addr().Is6()},
	}
	var err, serr error
	if s.raw, err = udp.SyscallConn(); err != nil {
		return err
	}
	err = s.raw.Control(func(fd uintptr) {
		for _, o := range options {
			if o.wanted && serr == nil {
				serr = unix.SetsockoptInt(int(fd), o.level, o.option, 1)
			}
		}
	})
	if err = errors.Join(err, serr); err != nil {
		return fmt.Errorf("socket options: %w", err)
	}
	return nil
}

// Receive waits for a datagram. to is the address that it was sent to, or the zero Addr if that is not a unicast
// address of ours.
func (s *udpSocket) Receive(b []byte) (n int, from netip.AddrPort, to netip.Addr, err error) {
	n, oob, _, from, err := s.UDP.ReadMsgUDPAddrPort(b, s.oob[:])
	to = s.control(s.oob[:oob])
	if !s.Wild {
		to = s.Local.Addr().WithZone("")
	}
	return n, unmapped(from), to, err
}

// Dropped returns how many datagrams the kernel reported as dropped because the socket's buffer was full.
func (s *udpSocket) Dropped() uint64 { return uint64(s.dropped.Load()) }

// control parses the control messages of a datagram.
func (s *udpSocket) control(oob []byte) (to netip.Addr) {
	for len(oob) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return to
		}
		switch {
		case h.Level == unix.SOL_SOCKET && h.Type == unix.SO_RXQ_OVFL && len(data) >= 4:
			s.dropped.Store(binary.NativeEndian.Uint32(data))
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			to = netip.AddrFrom4([4]byte(data[4:8])) // ipi_spec_dst, which is ours even if the datagram was multicast
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			to = netip.AddrFrom16([16]byte(data[:16])).Unmap()
		}
		oob = rest
	}
	if to.IsMulticast() || to.IsUnspecified() {
		return netip.Addr{}
	}
	return to
}

// From returns the control message to send from source. A zone belongs into the socket address, not here.
func (s *udpSocket) From(source netip.Addr) []byte {
	if !s.Wild || !source.IsValid() || source.IsUnspecified() {
		return nil
	}
	if s.Local.Addr().Is4() {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: source.As4()})
	}
	return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: source.As16()})
}

// Send sends a datagram, after a header if there is one.
func (s *udpSocket) Send(h *rsocket.ResolveHeader, payload []byte, oob []byte, to netip.AddrPort) error {
	if h != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.buf = append(h.Append(s.buf[:0]), payload...)
		payload = s.buf
	}
	_, _, err := s.UDP.WriteMsgUDPAddrPort(payload, oob, to)
	if err != nil && oob != nil && errors.Is(err, unix.EINVAL) {
		_, _, err = s.UDP.WriteMsgUDPAddrPort(payload, nil, to) // the address is no longer ours
	}
	return err
}

// Answer sends a header for the receiver. It never blocks and ignores the writers' lock and deadline.
func (s *udpSocket) Answer(h *rsocket.ResolveHeader, oob []byte, to netip.AddrPort) error {
	at, err := s.sockaddr(to)
	if err != nil {
		return err
	}
	b := h.Append(s.reply[:0])
	var serr error
	err = s.raw.Control(func(fd uintptr) {
		serr = unix.Sendmsg(int(fd), b, oob, at, unix.MSG_DONTWAIT)
		if oob != nil && errors.Is(serr, unix.EINVAL) {
			serr = unix.Sendmsg(int(fd), b, nil, at, unix.MSG_DONTWAIT) // the address is no longer ours
		}
	})
	return errors.Join(err, serr)
}

// sockaddr returns the address in the family of the socket.
func (s *udpSocket) sockaddr(to netip.AddrPort) (unix.Sockaddr, error) {
	if s.Local.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}, nil
	}
	at := &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	zone := to.Addr().Zone()
	if zone == "" {
		return at, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		at.ZoneId = uint32(n)
		return at, nil
	}
	i, err := net.InterfaceByName(zone)
	if err != nil {
		return nil, err
	}
	at.ZoneId = uint32(i.Index)
	return at, nil
}

// route returns the address from which the host would send to remote.
func route(remote netip.AddrPort) netip.Addr {
	if remote.Port() == 0 {
		remote = netip.AddrPortFrom(remote.Addr(), 1)
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(remote)) // this sends nothing
	if err != nil {
		return netip.Addr{}
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
}

// unmapped returns the address without IPv4-mapping, as it is on the wire.
func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
