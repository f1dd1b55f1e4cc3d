package socket

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/rsocket"
)

func openUDP(t *testing.T, network, local string) *udpSocket {
	c, err := net.ListenPacket(network, local)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	s := &udpSocket{}
	require.NoError(t, s.Open(c.(*net.UDPConn)))
	return s
}

// An address is as the version of the socket has it, with the interface of its zone.
func TestSockaddr(t *testing.T) {
	four, six := &udpSocket{Local: ap("127.0.0.1:1")}, &udpSocket{Local: ap("[::]:1")}
	at, err := four.sockaddr(ap("10.0.0.1:7"))
	require.NoError(t, err)
	require.Equal(t, &unix.SockaddrInet4{Port: 7, Addr: [4]byte{10, 0, 0, 1}}, at)
	at, err = six.sockaddr(ap("10.0.0.1:7"))
	require.NoError(t, err)
	require.Equal(t, &unix.SockaddrInet6{Port: 7, Addr: [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 1}}, at)
	lo, err := net.InterfaceByName("lo")
	require.NoError(t, err)
	for zone, index := range map[string]int{"": 0, "%lo": lo.Index, "%77": 77} {
		at, err = six.sockaddr(ap("[fe80::1" + zone + "]:7"))
		require.NoError(t, err)
		require.Equal(t, &unix.SockaddrInet6{Port: 7, Addr: [16]byte{0: 0xfe, 1: 0x80, 15: 1}, ZoneId: uint32(index)}, at)
	}
	_, err = six.sockaddr(ap("[fe80::1%nowhere]:7"))
	require.Error(t, err)
}

// An answer comes from the address that the question was sent to.
func TestAnswer(t *testing.T) {
	peer := openUDP(t, "udp4", "127.0.0.1:0")
	require.NoError(t, peer.UDP.SetDeadline(time.Now().Add(30*time.Second)))
	h := rsocket.ResolveHeader{Op: rsocket.ResolveCtrl, QPN: 5, Addr: netip.MustParseAddr("127.0.0.9")}
	for _, network := range []string{"udp", "udp4"} {
		s := openUDP(t, network, ":0")
		require.True(t, s.Wild)
		require.NoError(t, s.Answer(&h, s.From(h.Addr), peer.Local))
		b := make([]byte, 100)
		n, from, to, err := peer.Receive(b)
		require.NoError(t, err)
		require.Equal(t, h.Addr, from.Addr())
		require.Equal(t, peer.Local.Addr(), to)
		got, _, err := rsocket.ParseResolveHeader(b[:n])
		require.NoError(t, err)
		require.Equal(t, h, got)
	}
}
