package ebpf

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/packet"
)

// TCP flags of segments in tests.
const (
	flagFIN = 1 << iota
	flagSYN
	flagRST
	flagPSH
	flagACK
)

// Roles of our option.
const (
	roleOffer  = 0x11
	roleAccept = 0x12

	roleConfirm = 0x13
)

// segment is a TCP segment as tests write and read it.
type segment struct {
	src, dst netip.AddrPort
	flags    uint8
	seq, ack uint32
	options  []byte
	payload  []byte
	raw      []byte // of what was read
}

// smgw is our option.
func smgw(role uint8, nonce uint16) []byte {
	return []byte{254, 10, 'S', 'M', 'G', 'W', role, 0, byte(nonce >> 8), byte(nonce)}
}

// timestamps is the option every carriable SYN has.
func timestamps() []byte { return []byte{8, 10, 0, 0, 0, 1, 0, 0, 0, 0} }

// pad fills options with NOPs to a multiple of four.
func pad(opts ...[]byte) []byte {
	var b []byte
	for _, o := range opts {
		b = append(b, o...)
	}
	for len(b)%4 != 0 {
		b = append(b, 1)
	}
	return b
}

// bytes builds the raw IP packet.
func (s segment) bytes(*testing.T) []byte {
	return packet.Segment{
		Src: s.src, Dst: s.dst, Seq: s.seq, Ack: s.ack, Flags: s.flags, Window: 65000, Options: s.options, Payload: s.payload,
	}.Append(nil)
}

// readSegment decodes a raw IP packet; false if it is not TCP.
func readSegment(pkt []byte) (segment, bool) {
	raw := append([]byte(nil), pkt...)
	s, err := packet.ParseSegment(raw)
	return segment{
		src: s.Src, dst: s.Dst, flags: s.Flags, seq: s.Seq, ack: s.Ack, options: s.Options, payload: s.Payload, raw: raw,
	}, err == nil
}

// offer returns role and nonce of our option, if there is one.
func (s segment) offer() (role uint8, nonce uint16, ok bool) {
	o := packet.ParseTCPOptions(s.options).Option
	return o.Version<<4 | uint8(o.Role), o.Nonce, o.Role != 0
}

// readTUN reads segments from a TUN until one matches.
func readTUN(t *testing.T, fd int, match func(segment) bool) segment {
	t.Helper()
	s, ok := nextOf(t, fd, vnetHeaderLen, patience, readSegment, match)
	require.True(t, ok, "nothing that matches came through the TUN")
	return s
}

// writeTUN writes a segment to a TUN.
func writeTUN(t *testing.T, fd int, s segment) {
	t.Helper()
	_, err := unix.Write(fd, append(make([]byte, vnetHeaderLen), s.bytes(t)...))
	require.NoError(t, err)
}

// sniffer reads the packets that pass a device of a namespace.
type sniffer struct {
	t  testing.TB
	fd int
}

// sniff opens a packet socket on a device.
func (h *host) sniff(dev string) *sniffer {
	h.t.Helper()
	s := &sniffer{t: h.t, fd: -1}
	h.do(func() {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
		require.NoError(h.t, err)
		ifi, err := linkIndex(dev)
		require.NoError(h.t, err)
		require.NoError(h.t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: ifi}))
		s.fd = fd
	})
	h.t.Cleanup(func() { _ = unix.Close(s.fd) })
	return s
}

func htons(v uint16) uint16 { return wirePort(v) }

// next returns the next matching segment, or false after the timeout.
func (s *sniffer) next(timeout time.Duration, match func(segment) bool) (segment, bool) {
	s.t.Helper()
	return nextOf(s.t, s.fd, 0, timeout, readSegment, match)
}

// nextDatagram returns the next matching UDP datagram, or false after the timeout.
func (s *sniffer) nextDatagram(timeout time.Duration, match func(datagram) bool) (datagram, bool) {
	s.t.Helper()
	return nextOf(s.t, s.fd, 0, timeout, readDatagram, match)
}

// nextOf reads packets, which begin at some byte of what is read, until one can be read as
// a T and matches. It returns false after the timeout.
func nextOf[T any](t testing.TB, fd, at int, timeout time.Duration, parse func([]byte) (T, bool), match func(T) bool) (none T, ok bool) {
	t.Helper()
	buf := make([]byte, 70000)
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EAGAIN) {
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10)
			continue
		}
		require.NoError(t, err)
		if pkt, ok := parse(buf[at:n]); ok && match(pkt) {
			return pkt, true
		}
	}
	return none, false
}

// isSYN matches first SYNs to a port.
func isSYN(port uint16) func(segment) bool {
	return func(s segment) bool { return s.flags&(flagSYN|flagACK) == flagSYN && s.dst.Port() == port }
}

// ghost4 and ghost6 are addresses that no host has; w0 of the other host
// answers for them.
const (
	ghost4 = "10.77.0.9"
	ghost6 = "fd77::9"
)

// mac is the address of w0.
func (h *host) mac() (m net.HardwareAddr) {
	h.t.Helper()
	h.do(func() {
		l, err := netlink.LinkByName("w0")
		require.NoError(h.t, err)
		m = l.Attrs().HardwareAddr
	})
	return m
}

// ghosts makes packets for the ghost addresses go to another host, which ignores
// them, so that a test can answer in their place.
func (h *host) ghosts(to *host) {
	h.t.Helper()
	mac := to.mac()
	h.do(func() {
		ifi, err := linkIndex("w0")
		require.NoError(h.t, err)
		for _, a := range []string{ghost4, ghost6} {
			require.NoError(h.t, netlink.NeighSet(&netlink.Neigh{
				LinkIndex: ifi, State: unix.NUD_PERMANENT, IP: net.ParseIP(a), HardwareAddr: mac,
			}))
		}
	})
}

// send puts raw IP packets on w0 of the namespace, to the other end.
func (h *host) send(to *host, pkts ...[]byte) {
	h.t.Helper()
	mac := to.mac()
	h.do(func() {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(h.t, err)
		defer func() { _ = unix.Close(fd) }()
		ifi, err := linkIndex("w0")
		require.NoError(h.t, err)
		for _, p := range pkts {
			proto := uint16(unix.ETH_P_IP)
			if p[0]>>4 == 6 {
				proto = unix.ETH_P_IPV6
			}
			sa := &unix.SockaddrLinklayer{Protocol: htons(proto), Ifindex: ifi, Halen: 6}
			copy(sa.Addr[:], mac)
			require.NoError(h.t, unix.Sendto(fd, p, 0, sa))
		}
	})
}

// reply builds the answer to a segment.
func (s segment) reply(flags uint8, seq uint32, options []byte) segment {
	return segment{src: s.dst, dst: s.src, flags: flags, seq: seq, ack: s.seq + 1, options: options}
}
