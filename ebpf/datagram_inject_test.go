package ebpf

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/packet"
)

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
