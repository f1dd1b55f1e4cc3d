package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
	"github.com/smcgw/smcgw/packet"
)

// carriers is a pair of hosts whose datagrams to port 9000 are carried.
type carriers struct {
	t      *testing.T
	h1, h2 *host
	d1, d2 *Datapath
	f      *forwarder
}

// newCarriers opens both datapaths; only the client's policy has a rule.
func newCarriers(t *testing.T, rules []Rule) *carriers {
	t.Helper()
	requireRoot(t)
	c := &carriers{t: t, h1: newHost(t), h2: newHost(t)}
	pair(t, c.h1, c.h2)
	c.d1, c.d2 = c.h1.open(config(rules)), c.h2.open(config(nil))
	c.f = forward(t, c.d1, c.d2)
	return c
}

// carried waits until so many datagrams, and no more, have been carried: the
// application may have its answer before the forwarder has counted it.
func (c *carriers) carried(n int64) {
	c.t.Helper()
	require.Eventually(c.t, func() bool { return c.f.carried.Load() >= n }, 30*time.Second, time.Millisecond)
	require.Equal(c.t, n, c.f.carried.Load())
}

// families are the two addresses of the server.
var families = []struct{ name, client, server string }{
	{"v4", "10.77.0.1", "10.77.0.2"}, {"v6", "fd77::1", "fd77::2"},
}

// A connected socket talks through user space; addresses stay true, strict
// firewalls see what they see natively, and nothing is on the wire.
func TestDatagrams(t *testing.T) {
	t.Parallel()
	for _, v := range families {
		t.Run(v.name, func(t *testing.T) {
			c := newCarriers(t, udpRules(9000))
			const in = "table inet f { chain i { type filter hook input priority 0; policy drop; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; ct state established,related accept; "
			c.h1.nft(in + "}; }")
			c.h2.nft(in + `iifname "w0" ip saddr 10.77.0.1 udp dport 9000 accept; iifname "w0" ip6 saddr fd77::1 udp dport 9000 accept; }; }`)
			capable(t, c.d1, v.server)
			wire := c.h1.sniff("w0")
			c.h2.udpEcho(net.JoinHostPort(v.server, "9000"))
			app := c.h1.udp("", net.JoinHostPort(v.server, "9000"))
			for i := range 100 {
				ping(t, app, strings.Repeat("x", i*14)+"!")
			}
			longest := 1500 - packet.UDPLen - packet.IPv4MinLen
			if v.name == "v6" {
				longest = 1500 - packet.UDPLen - packet.IPv6Len
			}
			ping(t, app, strings.Repeat("y", longest))
			c.carried(202)
			_, ok := wire.nextDatagram(50*time.Millisecond, func(u datagram) bool { return u.dst.Port() == 9000 })
			require.False(t, ok, "a datagram on the wire")
			require.EqualValues(t, 101, stat(t, c.d1, "dgram_steered"))
			require.EqualValues(t, 101, stat(t, c.d1, "dgram_delivered"))
			require.EqualValues(t, 101, stat(t, c.d2, "dgram_delivered"))
			e, ok := entry(t, c.d1, udpTuple(app))
			require.True(t, ok)
			require.EqualValues(t, 101, e.Packets)
			require.EqualValues(t, 14*99*50+100+longest, e.Bytes)
			require.Zero(t, e.Reason)
			require.Zero(t, e.Rule)
			require.EqualValues(t, SideClient, e.Side)
			back := udpTuple(app)
			e, ok = entry(t, c.d2, Tuple{Local: back.Remote, Remote: back.Local})
			require.True(t, ok)
			require.EqualValues(t, SideServer, e.Side)
			counters, err := c.d1.Counters()
			require.NoError(t, err)
			require.Equal(t, []Decided{{Rule: 0, Accelerate: 1}}, counters.Decided)
			require.Empty(t, counters.Native[SideClient])
			require.Empty(t, counters.Datagrams[SideClient])
			require.Zero(t, counters.Stats[queueDrop])
		})
	}
}

// One socket with five peers, of which two are capable: every answer comes from
// the peer that was asked.
func TestDatagramsManyPeers(t *testing.T) {
	t.Parallel()
	c := newCarriers(t, udpRules(9000))
	var peers []netip.AddrPort
	for i := range 5 {
		ip := fmt.Sprintf("10.77.0.%d", 20+i)
		c.h2.do(func() {
			l, err := netlink.LinkByName("w0")
			require.NoError(t, err)
			addr, err := netlink.ParseAddr(ip + "/24")
			require.NoError(t, err)
			require.NoError(t, netlink.AddrAdd(l, addr))
		})
		c.h2.udpEcho(ip + ":9000")
		peers = append(peers, addrPort(ip+":9000"))
	}
	capable(t, c.d1, "10.77.0.20", "10.77.0.21")
	require.NoError(t, c.d1.SetDatagramPeer(DatagramPeer{Addr: peers[1].Addr(), Port: 9000, Reason: 33})) // the port goes first
	require.NoError(t, c.d1.SetDatagramPeer(DatagramPeer{Addr: peers[2].Addr(), Port: 9000, Capable: true}))
	app := c.h1.udp("0.0.0.0:0", "")
	for round := range 4 {
		for i, p := range peers {
			text := fmt.Sprintf("%d to %d", round, i)
			require.NoError(t, app.SetDeadline(time.Now().Add(patience)))
			_, err := app.WriteToUDPAddrPort([]byte(text), p)
			require.NoError(t, err)
			b := make([]byte, 100)
			n, from, err := app.ReadFromUDPAddrPort(b)
			require.NoError(t, err)
			require.Equal(t, text, string(b[:n]))
			require.Equal(t, p, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()))
		}
	}
	c.carried(2 * 2 * 4)
	require.EqualValues(t, 1, datagramCount(t, c.d1, SideClient, 33))
	require.EqualValues(t, 2, datagramCount(t, c.d1, SideClient, ReasonPeerUnresolved))
}

// A sender that lets the kernel cut its datagrams: user space gets whole ones.
func TestDatagramsSegmented(t *testing.T) {
	t.Parallel()
	for _, v := range families {
		t.Run(v.name, func(t *testing.T) {
			c := newCarriers(t, udpRules(9000))
			capable(t, c.d1, v.server)
			server := c.h2.udp(net.JoinHostPort(v.server, "9000"), "")
			app := c.h1.udp("", net.JoinHostPort(v.server, "9000"))
			setOption(t, app, unix.SOL_UDP, unix.UDP_SEGMENT, 1000)
			sent := make([]byte, 10500)
			for i := range sent {
				sent[i] = byte(i * 7)
			}
			_, err := app.Write(sent)
			require.NoError(t, err)
			require.NoError(t, server.SetReadDeadline(time.Now().Add(patience)))
			var got []byte
			b := make([]byte, 65536)
			for i := range 11 {
				n, err := server.Read(b)
				require.NoError(t, err)
				require.Equal(t, min(1000, len(sent)-i*1000), n)
				got = append(got, b[:n]...)
			}
			require.Equal(t, sent, got)
			c.carried(11)
			require.LessOrEqual(t, c.f.longest.Load(), int64(1000+packet.IPv6Len+packet.UDPLen))
			e, ok := entry(t, c.d1, udpTuple(app))
			require.True(t, ok)
			require.EqualValues(t, 11, e.Packets)
			require.EqualValues(t, 10500, e.Bytes)
		})
	}
}

// What is longer than the path's packets goes as the kernel cuts it, natively.
func TestDatagramsFragmented(t *testing.T) {
	t.Parallel()
	for _, v := range families {
		t.Run(v.name, func(t *testing.T) {
			c := newCarriers(t, udpRules(9000))
			capable(t, c.d1, v.server)
			c.h2.udpEcho(net.JoinHostPort(v.server, "9000"))
			app := c.h1.udp("", net.JoinHostPort(v.server, "9000"))
			ping(t, app, strings.Repeat("long", 1000))
			require.Zero(t, c.f.carried.Load())
			require.EqualValues(t, 1, stat(t, c.d1, "dgram_fragmented"))
			ping(t, app, "short")
			c.carried(2)
			ping(t, app, strings.Repeat("long", 1000))
			c.carried(2)
		})
	}
}

// What user space cannot send it returns: the datagram leaves as the
// application sent it.
func TestDatagramsReleased(t *testing.T) {
	t.Parallel()
	for _, v := range families {
		t.Run(v.name, func(t *testing.T) {
			c := newCarriers(t, udpRules(9000))
			capable(t, c.d1, v.server)
			c.f.back.Store(true)
			c.h2.udpEcho(net.JoinHostPort(v.server, "9000"))
			app := c.h1.udp("", net.JoinHostPort(v.server, "9000"))
			for i := range 10 {
				ping(t, app, strings.Repeat("x", 100*i)+"!")
			}
			c.carried(10)
			require.EqualValues(t, 10, stat(t, c.d1, "dgram_released"))
			require.Zero(t, stat(t, c.d2, "dgram_delivered"))
		})
	}
}

// What is returned has the mark by which the host routes it: here no other route leads to
// the server.
func TestDatagramsReleasedByMark(t *testing.T) {
	t.Parallel()
	c := newCarriers(t, udpRules(9000))
	const server, mark, table = "10.99.0.2", 7, 77
	c.h2.do(func() {
		setAddress(t, "lo", server+"/32")
		require.NoError(t, netdev.WriteSysctl("ipv4/conf/w0/arp_ignore", "1")) // it is no neighbour
	})
	c.h1.do(func() {
		rule := netlink.NewRule()
		rule.Mark, rule.Table = mark, table
		require.NoError(t, netlink.RuleAdd(rule))
		device, err := linkIndex("w0")
		require.NoError(t, err)
		require.NoError(t, netlink.RouteAdd(&netlink.Route{
			Dst: netlink.NewIPNet(net.ParseIP(server).To4()), Gw: net.IPv4(10, 77, 0, 2), LinkIndex: device, Table: table,
		}))
		require.NoError(t, netdev.WriteSysctl("ipv4/conf/w0/rp_filter", "0"))
	})
	capable(t, c.d1, server)
	c.f.back.Store(true)
	c.h2.udpEcho(server + ":9000")
	var app *net.UDPConn
	c.h1.do(func() {
		d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
			return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark) }), err)
		}}
		conn, err := d.Dial("udp4", server+":9000")
		require.NoError(t, err)
		app = conn.(*net.UDPConn)
	})
	defer func() { require.NoError(t, app.Close()) }()
	ping(t, app, "marked")
	c.carried(1)
	require.EqualValues(t, 1, stat(t, c.d1, "dgram_released"))
}

// A peer becomes capable and ceases to be while datagrams flow: each arrives
// once.
func TestDatagramsSwitch(t *testing.T) {
	t.Parallel()
	c := newCarriers(t, udpRules(9000))
	server := c.h2.udp("10.77.0.2:9000", "")
	app := c.h1.udp("", "10.77.0.2:9000")
	peer := netip.MustParseAddr("10.77.0.2")
	const count = 4000
	seen := make(chan map[uint32]int, 1)
	var arrived atomic.Int64
	go func() {
		got := map[uint32]int{}
		b := make([]byte, 100)
		_ = server.SetReadDeadline(time.Now().Add(patience))
		for len(got) < count {
			n, err := server.Read(b)
			if err != nil || n != 4 {
				break
			}
			got[binary.BigEndian.Uint32(b)]++
			arrived.Add(1)
		}
		seen <- got
	}()
	for i := range uint32(count) {
		switch i % 100 {
		case 20:
			capable(t, c.d1, "10.77.0.2")
		case 60:
			require.NoError(t, c.d1.SetDatagramPeer(DatagramPeer{Addr: peer, Reason: 33}))
		case 80:
			require.NoError(t, c.d1.ForgetDatagramPeer(peer, 0))
		}
		if i%50 == 0 { // no queue is part of this test
			require.Eventually(t, func() bool { return arrived.Load() >= int64(i)-50 }, patience, time.Millisecond, "%d", i)
		}
		_, err := app.Write(binary.BigEndian.AppendUint32(nil, i))
		require.NoError(t, err)
	}
	got := <-seen
	require.Len(t, got, count)
	for i, n := range got {
		require.Equal(t, 1, n, i)
	}
	require.EqualValues(t, count*40/100, stat(t, c.d1, "dgram_steered"))
	c.carried(count * 40 / 100)
}

// What user space writes to A beyond the known tuples goes nowhere, and is
// counted. What is longer than the MTU of the device it arrives on is delivered: its
// sender does not learn that MTU.
func TestDatagramsFromGateway(t *testing.T) {
	t.Parallel()
	c := newCarriers(t, nil)
	server := c.h2.udp("10.77.0.2:9000", "")
	u := datagram{src: addrPort("10.77.0.1:5000"), dst: addrPort("10.77.0.2:9000"), payload: []byte("hello")}
	tuple := Tuple{Local: u.dst, Remote: u.src}
	write := func(pkt []byte) {
		_, err := unix.Write(c.d2.AppTUN(), append(make([]byte, vnetHeaderLen), pkt...))
		require.NoError(t, err)
	}
	write(u.bytes())
	require.EqualValues(t, 1, stat(t, c.d2, "dgram_unknown_drop"))
	_, err := c.d2.DatagramIfindex(tuple)
	require.ErrorIs(t, err, ErrNoFlow)
	require.ErrorIs(t, c.d2.OpenDatagram(tuple, 1, 0), ErrNoDevice)
	require.NoError(t, open(c.d2, tuple))
	write(u.bytes())
	require.NoError(t, server.SetReadDeadline(time.Now().Add(patience)))
	b := make([]byte, 100)
	n, from, err := server.ReadFromUDPAddrPort(b)
	require.NoError(t, err)
	require.Equal(t, "hello", string(b[:n]))
	require.Equal(t, u.src, from)

	other := Tuple{Local: u.dst, Remote: addrPort("10.77.0.1:5001")}
	require.NoError(t, c.d2.CloseDatagram(other, 34, time.Minute))
	_, err = c.d2.DatagramIfindex(other)
	require.ErrorIs(t, err, ErrNoFlow)
	write(datagram{src: other.Remote, dst: other.Local, payload: u.payload}.bytes())
	write(datagram{src: other.Local, dst: other.Remote, payload: u.payload}.bytes())
	require.EqualValues(t, 3, stat(t, c.d2, "dgram_unknown_drop"))

	long := u
	long.payload = make([]byte, 1600)
	write(long.bytes())
	n, _, err = server.ReadFromUDPAddrPort(make([]byte, 2000))
	require.NoError(t, err)
	require.Len(t, long.payload, n)
	for name, pkt := range map[string][]byte{
		"fragment":   change(u.bytes(), 6, 0x20),
		"options":    change(u.bytes(), 0, 0x46),
		"udp-lite":   change(u.bytes(), 9, 136),
		"ip only":    u.bytes()[:packet.IPv4MinLen],
		"no version": change(u.bytes(), 0, 0),
	} {
		before := stat(t, c.d2, "app_ingress_drop")
		_, _ = unix.Write(c.d2.AppTUN(), append(make([]byte, vnetHeaderLen), pkt...)) // the device refuses some itself
		require.LessOrEqual(t, stat(t, c.d2, "app_ingress_drop"), before+1, name)
	}
	require.NoError(t, server.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err = server.Read(b)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "something else arrived")
}

// change overwrites one byte.
func change(pkt []byte, at int, v byte) []byte {
	pkt[at] = v
	return pkt
}

// A wire device without a link header.
func TestDatagramsLayer3(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	h := newHost(t)
	wire := h.layer3(t)
	defer func() { _ = unix.Close(wire) }()
	cfg := config(udpRules(9000))
	cfg.Devices = []string{"l3"}
	d := h.open(cfg)
	capable(t, d, "10.78.0.2")
	app := h.udp("", "10.78.0.2:9000")
	_, err := app.Write([]byte("question"))
	require.NoError(t, err)
	out := readUDP(t, d.AppTUN())
	require.Equal(t, "question", string(out.payload))
	in := datagram{src: out.dst, dst: out.src, payload: []byte("answer")}
	_, err = unix.Write(d.AppTUN(), append(make([]byte, vnetHeaderLen), in.bytes()...))
	require.NoError(t, err)
	require.NoError(t, app.SetReadDeadline(time.Now().Add(patience)))
	b := make([]byte, 100)
	n, err := app.Read(b)
	require.NoError(t, err)
	require.Equal(t, "answer", string(b[:n]))
	_, err = unix.Write(d.AppTUN(), append(make([]byte, vnetHeaderLen), out.bytes()...))
	require.NoError(t, err)
	require.Equal(t, out, readUDP(t, wire))
}

// readUDP reads a TUN until a datagram comes.
func readUDP(t *testing.T, fd int) datagram {
	t.Helper()
	buf := make([]byte, 70000)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		n, err := unix.Read(fd, buf)
		if err != nil {
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 50)
			continue
		}
		if u, ok := readDatagram(buf[vnetHeaderLen:n]); ok {
			return u
		}
	}
	t.Fatal("no datagram came through the TUN")
	return datagram{}
}

// partial is a virtio header that leaves the checksum to the receiver.
func partial(v6 bool) []byte {
	h := make([]byte, vnetHeaderLen)
	h[0] = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	start := uint16(packet.IPv4MinLen)
	if v6 {
		start = packet.IPv6Len
	}
	binary.NativeEndian.PutUint16(h[6:], start)
	binary.NativeEndian.PutUint16(h[8:], 6)
	return h
}

// A datagram written with a partial checksum arrives, as one without any does.
func TestDatagramsChecksum(t *testing.T) {
	t.Parallel()
	c := newCarriers(t, nil)
	for _, v := range families {
		server := c.h2.udp(net.JoinHostPort(v.server, "9000"), "")
		u := datagram{src: addrPort(net.JoinHostPort(v.client, "5000")), dst: addrPort(net.JoinHostPort(v.server, "9000")), payload: []byte("text")}
		require.NoError(t, open(c.d2, Tuple{Local: u.dst, Remote: u.src}))
		receive := func(name string, arrives bool, header, pkt []byte) {
			t.Helper()
			_, err := unix.Write(c.d2.AppTUN(), append(header, pkt...))
			require.NoError(t, err)
			b := make([]byte, 100)
			within := 100 * time.Millisecond
			if arrives {
				within = patience
			}
			require.NoError(t, server.SetReadDeadline(time.Now().Add(within)))
			n, err := server.Read(b)
			require.Equal(t, arrives, err == nil && string(b[:n]) == "text", name)
		}
		v6 := u.src.Addr().Is6()
		at := packet.IPv4MinLen + 6
		if v6 {
			at = packet.IPv6Len + 6
		}
		receive("right", true, make([]byte, vnetHeaderLen), u.bytes())
		receive("wrong", false, make([]byte, vnetHeaderLen), change(u.bytes(), at, u.bytes()[at]^0x55))
		receive("partial", true, partial(v6), change(u.bytes(), at, 0x77))
		if !v6 {
			receive("none", true, make([]byte, vnetHeaderLen), change(change(u.bytes(), at, 0), at+1, 0))
		}
	}
}

// The loops that carry datagrams never wait for a goroutine that attaches programs.
func TestDatagramCallsDoNotWait(t *testing.T) {
	t.Parallel()
	c := newCarriers(t, nil)
	tuple := Tuple{Local: addrPort("10.77.0.2:9000"), Remote: addrPort("10.77.0.1:5000")}
	require.NoError(t, open(c.d2, tuple))
	ifindex, err := c.d2.DatagramIfindex(tuple)
	require.NoError(t, err)
	c.d2.mu.Lock()
	defer c.d2.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		v := c.d2.Decide(Query{Proto: ProtoUDP, Inbound: true, Peer: tuple.Remote.Addr(), Port: 9000})
		_, err := c.d2.RouteDevice(tuple.Local.Addr(), tuple.Remote.Addr())
		done <- errors.Join(err, c.d2.OpenDatagram(tuple, ifindex, v.Rule),
			c.d2.SetDatagramPeer(DatagramPeer{Addr: tuple.Remote.Addr(), Capable: true}), c.d2.CloseDatagram(tuple, 0, 0))
	}()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(patience):
		require.Fail(t, "waits")
	}
}
