package process

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOwners finds both ends of a TCP connection over loopback, and UDP sockets that are and are not connected.
func TestOwners(t *testing.T) {
	name, err := os.ReadFile("/proc/self/comm")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("/proc/self/comm", []byte("another name"), 0))
	defer func() { require.NoError(t, os.WriteFile("/proc/self/comm", name, 0)) }()
	for _, loopback := range []string{"127.0.0.1:0", "[::1]:0"} {
		ln, err := net.Listen("tcp", loopback)
		require.NoError(t, err)
		defer ln.Close()
		client, err := net.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		defer client.Close()
		server, err := ln.Accept()
		require.NoError(t, err)
		defer server.Close()
		bare, err := net.ListenPacket("udp", ":0")
		require.NoError(t, err)
		defer bare.Close()
		connected, err := net.Dial("udp", ln.Addr().String())
		require.NoError(t, err)
		defer connected.Close()

		port := func(a net.Addr) netip.AddrPort { return netip.MustParseAddrPort(a.String()) }
		at, peer := port(ln.Addr()).Addr(), netip.AddrPortFrom(port(ln.Addr()).Addr(), 9)
		wanted := []Socket{
			{Local: port(client.LocalAddr()), Remote: port(client.RemoteAddr())},
			{Local: port(server.LocalAddr()), Remote: port(server.RemoteAddr())},
			{UDP: true, Local: netip.AddrPortFrom(at, port(bare.LocalAddr()).Port()), Remote: peer},
			{UDP: true, Local: port(connected.LocalAddr()), Remote: port(connected.RemoteAddr())},
		}
		others := []Socket{
			{Local: port(client.LocalAddr()), Remote: peer},
			{UDP: true, Local: port(connected.LocalAddr()), Remote: peer},
		}
		var owners map[Socket]Owner
		require.Eventually(t, func() bool { // a machine may have more processes, or work, than the time allows for
			var err error
			owners, err = Owners(append(others, wanted...))
			require.NoError(t, err)
			return len(owners) == len(wanted)
		}, patience, time.Millisecond)
		for _, s := range wanted {
			o := owners[s]
			require.Equal(t, Owner{Program: "another name", PID: os.Getpid(), UID: uint32(os.Getuid()), Cgroup: o.Cgroup}, o, "%+v", s)
			require.Regexp(t, "^/", o.Cgroup)
		}
		require.NoError(t, client.Close())
		owners, err = Owners(wanted[:1])
		require.NoError(t, err)
		require.Empty(t, owners, "its process has closed it")
	}
	none, err := Owners(nil)
	require.NoError(t, err)
	require.Empty(t, none)
}
