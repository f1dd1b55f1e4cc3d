package ebpf

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
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

// datagram is a UDP datagram as tests write and read it.
type datagram struct {
	src, dst netip.AddrPort
	payload  []byte
}

// bytes builds the raw IP packet, with its checksum.
func (u datagram) bytes() []byte {
	n := packet.UDPLen + len(u.payload)
	h := packet.Header{Src: u.src.Addr(), Dst: u.dst.Addr(), Proto: packet.ProtoUDP, TTL: 64}
	pkt := make([]byte, h.Len()+packet.UDPLen, h.Len()+n)
	at := h.Put(pkt, n)
	udp := packet.UDP(pkt[at:])
	udp.Put(u.src.Port(), u.dst.Port(), len(u.payload))
	pkt = append(pkt, u.payload...)
	udp.SetChecksum(^packet.Sum(pkt[at:], packet.PseudoSum(pkt[:at], packet.ProtoUDP, n)))
	return pkt
}

// readDatagram decodes a raw IP packet; false if it is not UDP, or a fragment.
func readDatagram(pkt []byte) (datagram, bool) {
	p, err := packet.ParseIP(pkt)
	if err != nil {
		return datagram{}, false
	}
	udp, payload, err := p.UDP()
	if err != nil {
		return datagram{}, false
	}
	return datagram{
		src: netip.AddrPortFrom(p.Src(), udp.SrcPort()), dst: netip.AddrPortFrom(p.Dst(), udp.DstPort()),
		payload: append([]byte(nil), payload...),
	}, true
}

// udpRules select datagrams by port; nothing else is on the wire then.
func udpRules(ports ...uint16) []Rule {
	return []Rule{{Proto: ProtoUDP, Ports: ports, Action: ActionAccelerate}}
}

// udp opens a UDP socket in the namespace; an empty remote leaves it unconnected.
func (h *host) udp(local, remote string) *net.UDPConn {
	h.t.Helper()
	var l, r *net.UDPAddr
	if local != "" {
		l = net.UDPAddrFromAddrPort(addrPort(local))
	}
	var c *net.UDPConn
	var err error
	h.do(func() {
		if remote == "" {
			c, err = net.ListenUDP("udp", l)
			return
		}
		r = net.UDPAddrFromAddrPort(addrPort(remote))
		c, err = net.DialUDP("udp", l, r)
	})
	require.NoError(h.t, err)
	_ = c.SetReadBuffer(4 << 20)
	h.t.Cleanup(func() { _ = c.Close() })
	return c
}

// udpEcho answers every datagram at an address until the test ends.
func (h *host) udpEcho(local string) {
	h.t.Helper()
	c := h.udp(local, "")
	go func() {
		b := make([]byte, 65536)
		for {
			n, from, err := c.ReadFromUDPAddrPort(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = c.WriteToUDPAddrPort(b[:n], from)
			}
		}
	}()
}

// ping sends a datagram on a connected socket and wants it back.
func ping(t *testing.T, c *net.UDPConn, text string) {
	t.Helper()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	_, err := c.Write([]byte(text))
	require.NoError(t, err)
	b := make([]byte, 65536)
	n, err := c.Read(b)
	require.NoError(t, err)
	require.Equal(t, text, string(b[:n]))
}

// udpTuple is the tuple of a connected socket.
func udpTuple(c *net.UDPConn) Tuple {
	l, r := c.LocalAddr().(*net.UDPAddr).AddrPort(), c.RemoteAddr().(*net.UDPAddr).AddrPort()
	return Tuple{
		Local:  netip.AddrPortFrom(l.Addr().Unmap(), l.Port()),
		Remote: netip.AddrPortFrom(r.Addr().Unmap(), r.Port()),
	}
}

// setOption sets a socket option of a UDP socket.
func setOption(t *testing.T, c syscall.Conn, level, name, value int) {
	t.Helper()
	rc, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, rc.Control(func(fd uintptr) {
		require.NoError(t, unix.SetsockoptInt(int(fd), level, name, value))
	}))
}

// forwarder carries datagrams between two datapaths as two gateways would:
// what one reads from A the other writes to its own.
type forwarder struct {
	t       *testing.T
	carried atomic.Int64
	back    atomic.Bool // give datagrams back to the network instead
	longest atomic.Int64
}

// forward joins two datapaths until the test ends.
func forward(t *testing.T, d1, d2 *Datapath) *forwarder {
	t.Helper()
	f := &forwarder{t: t}
	stop, done := make(chan struct{}), make(chan struct{}, 2)
	go f.run(d1, d2, stop, done)
	go f.run(d2, d1, stop, done)
	t.Cleanup(func() {
		close(stop)
		<-done
		<-done
	})
	return f
}

// run is one direction.
func (f *forwarder) run(from, to *Datapath, stop <-chan struct{}, done chan<- struct{}) {
	defer func() { done <- struct{}{} }()
	buf := make([]byte, vnetHeaderLen+65536)
	for {
		select {
		case <-stop:
			return
		default:
		}
		n, err := unix.Read(from.AppTUN(), buf)
		if err != nil {
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(from.AppTUN()), Events: unix.POLLIN}}, 20)
			continue
		}
		u, ok := readDatagram(buf[vnetHeaderLen:n])
		if !ok {
			continue
		}
		target := to
		if f.back.Load() {
			target = from
		} else if err := open(to, Tuple{Local: u.dst, Remote: u.src}); err != nil {
			f.t.Errorf("open %v: %v", u.dst, err)
		}
		f.longest.Store(max(f.longest.Load(), int64(n-vnetHeaderLen)))
		if _, err := unix.Write(target.AppTUN(), buf[:n]); err != nil {
			f.t.Errorf("write: %v", err)
		}
		f.carried.Add(1)
	}
}

// open makes the entry of a tuple that a peer began.
func open(d *Datapath, t Tuple) error {
	_, err := d.DatagramIfindex(t)
	if !errors.Is(err, ErrNoFlow) {
		return err
	}
	ifindex, err := d.RouteDevice(t.Local.Addr(), t.Remote.Addr())
	if err != nil {
		return err
	}
	return d.OpenDatagram(t, ifindex, 0)
}

// capable makes whole addresses capable.
func capable(t *testing.T, d *Datapath, addrs ...string) {
	t.Helper()
	for _, a := range addrs {
		require.NoError(t, d.SetDatagramPeer(DatagramPeer{Addr: netip.MustParseAddr(a), Capable: true}))
	}
}

// entry is the datagram entry of a tuple, if there is one.
func entry(t *testing.T, d *Datapath, tuple Tuple) (smcgwDgram, bool) {
	t.Helper()
	k, err := tuple.key()
	require.NoError(t, err)
	v, err := d.datagram(k)
	if err != nil {
		require.ErrorIs(t, err, ErrNoFlow)
	}
	return v, err == nil
}
