package soft

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Socket buffers in bytes, as far as the host allows. A receiver must hold what all its peers have in flight; a train
// of 64 KiB counts about 70 KiB.
const (
	receiveBuffer = 8 << 20
	sendBuffer    = 8 << 20
)

// Source ports of RoCEv2 are the upper quarter. sourcePortTries is how many of them a lane tries before it gives up.
const (
	firstSourcePort = 0xC000
	sourcePorts     = 0x4000
	sourcePortTries = 64
)

// destQPLow is the offset of the low byte of the BTH's destination queue pair in the UDP payload.
const destQPLow = 7

// udpReceiver is an open receiving socket and the kernel's offloads for it.
type udpReceiver struct {
	fd      int
	gro     bool // merges datagrams (UDP_GRO)
	segment bool // can split trains (UDP_SEGMENT)
	buffer  int  // bytes of receive buffer
}

// listenUDP opens one vector's receiving socket for an address. Several vectors share the port.
//
// Vector 0 binds before it enables sharing, so that the bind fails if another device has the port, even one with
// several vectors. With SO_REUSEPORT from the start, the two would take each other's datagrams.
func listenUDP(at netip.AddrPort, vector, vectors int, offload bool) (udpReceiver, error) {
	s := udpReceiver{fd: -1}
	opts := receiveOptions(at.Addr())
	if vector > 0 {
		opts = append(opts, option{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1})
	}
	fd, err := bindUDP(at, opts)
	if err != nil {
		return s, err
	}
	if vector == 0 && vectors > 1 {
		err = setOptions(fd, []option{{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1}})
	} else if vector > 0 {
		err = steer(fd, vectors)
	}
	if err != nil {
		_ = unix.Close(fd)
		return s, fmt.Errorf("share %v: %w", at, err)
	}
	s.fd = fd
	if offload {
		s.gro = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil
		_, err = unix.GetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT)
		s.segment = err == nil
	}
	s.buffer = setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receiveBuffer)
	return s, nil
}

// receiveOptions returns options for the ECN mark of each datagram, and to accept missing UDP checksums over IPv6: the
// kernel's rxe sends none.
func receiveOptions(a netip.Addr) []option {
	if a.Is4() {
		return []option{{unix.IPPROTO_IP, unix.IP_RECVTOS, 1}}
	}
	return []option{
		{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1},
		{unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1},
	}
}

// steer makes the kernel choose among the sockets of a port by the datagram's destination queue pair, whose low bits
// identify the vector: the program runs on the UDP payload and returns the socket's number. Unreadable datagrams go to
// 0, unknown numbers to any vector.
func steer(fd, vectors int) error {
	prog := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: destQPLow},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 1<<vectorBits - 1},
		{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: uint32(vectors)},
		{Code: unix.BPF_RET | unix.BPF_A},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
		&unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]})
}

// openLane opens a socket to send from, and returns the size of its send buffer. It is not connected, since it serves
// many peers. "Do not fragment" is set because only that makes the kernel use the IPv4 identification 0 (counting up
// within a train), which the ICRC covers. It is never read.
func openLane(a netip.Addr, priority int) (lane, int, error) {
	opts := []option{
		{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO},
		{unix.SOL_SOCKET, unix.SO_RCVBUF, 0}, // the least there is
	}
	if a.Is6() {
		opts[0] = option{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO}
	}
	if priority != 0 {
		opts = append(opts, option{unix.SOL_SOCKET, unix.SO_PRIORITY, priority})
	}
	for range sourcePortTries {
		port := uint16(firstSourcePort + rand.IntN(sourcePorts))
		fd, err := bindUDP(netip.AddrPortFrom(a, port), opts)
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			return lane{}, 0, err
		}
		return lane{fd: fd, port: port}, setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, sendBuffer), nil
	}
	return lane{}, 0, fmt.Errorf("source port of %v: %w", a, unix.EADDRINUSE)
}

// option is an integer socket option.
type option struct{ level, name, value int }

func setOptions(fd int, opts []option) error {
	for _, o := range opts {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return os.NewSyscallError("setsockopt "+strconv.Itoa(o.name), err)
		}
	}
	return nil
}

// setBuffer sets a buffer size, as far as the host allows, and returns the result. The kernel doubles the value for its
// own bookkeeping.
func setBuffer(fd, force, plain, size int) int {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size)
	}
	got, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, plain)
	return got / 2
}

// bindUDP opens a nonblocking socket with options and binds it.
func bindUDP(at netip.AddrPort, opts []option) (int, error) {
	family := unix.AF_INET
	if at.Addr().Is6() {
		family = unix.AF_INET6
		opts = append(opts, option{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1})
	}
	sa, err := bindAddress(at)
	if err != nil {
		return -1, err
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("udp socket: %w", err)
	}
	if err := setOptions(fd, opts); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	if err := unix.Bind(fd, sa); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("bind %v: %w", at, err)
	}
	return fd, nil
}

// bindAddress returns the address to bind to. A link-local one needs its interface; the kernel then ties the socket to
// it, and destinations need none.
func bindAddress(at netip.AddrPort) (unix.Sockaddr, error) {
	a := at.Addr()
	if a.Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: a.As4()}, nil
	}
	sa := &unix.SockaddrInet6{Port: int(at.Port()), Addr: a.As16()}
	if !a.IsLinkLocalUnicast() {
		return sa, nil
	}
	if n, err := strconv.ParseUint(a.Zone(), 10, 32); err == nil {
		sa.ZoneId = uint32(n)
		return sa, nil
	}
	var in *net.Interface
	var err error
	if a.Zone() != "" {
		in, err = net.InterfaceByName(a.Zone())
	} else {
		in, err = interfaceOf(a)
	}
	if err != nil {
		return nil, fmt.Errorf("interface of %v: %w", a, err)
	}
	sa.ZoneId = uint32(in.Index)
	return sa, nil
}
