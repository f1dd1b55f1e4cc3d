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
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/packet"
)

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
