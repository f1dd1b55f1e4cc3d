package soft

import (
	"bytes"
	"log/slog"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A link-local address is bound to its interface, which its zone names or the
// host knows.
func TestBindAddress(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	require.NoError(t, err)
	for s, zone := range map[string]int{"[fe80::1%lo]:5": lo.Index, "[fe80::1%7]:5": 7, "[2001:db8::1]:5": 0} {
		at := netip.MustParseAddrPort(s)
		sa, err := bindAddress(at)
		require.NoError(t, err)
		require.Equal(t, &unix.SockaddrInet6{Port: 5, ZoneId: uint32(zone), Addr: at.Addr().As16()}, sa)
	}
	for _, s := range []string{"[fe80::1%nowhere]:5", "[fe80::dead:beef:1]:5"} {
		_, err := bindAddress(netip.MustParseAddrPort(s))
		require.Error(t, err)
		_, err = bindUDP(netip.MustParseAddrPort(s), nil)
		require.Error(t, err)
	}
}

// Without a socket a lane has no port, and the log says so once.
func TestUDPLinkNoLane(t *testing.T) {
	var out bytes.Buffer
	l := openLink(t, Config{Addrs: []netip.Addr{netip.MustParseAddr("127.0.71.1")}, UDPPort: freePort(t)}, 0)
	l.log = slog.New(slog.NewTextHandler(&out, nil))
	l.addrs = []netip.Addr{netip.MustParseAddr("192.0.2.1")} // not of this host
	require.Zero(t, l.sourcePort(0, 0))
	require.Zero(t, l.sourcePort(0, 0))
	require.Equal(t, 1, bytes.Count(out.Bytes(), []byte("no socket")), out.String())
}

// A host that does not let us force a buffer's size lets us have a smaller one.
func TestSocketBuffers(t *testing.T) {
	fd, err := bindUDP(netip.MustParseAddrPort("127.0.71.1:0"), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(fd)) }()
	const refused = 0x7fff // no such option
	require.Equal(t, 64<<10, setBuffer(fd, refused, unix.SO_RCVBUF, 64<<10))
	have := setBuffer(fd, refused, unix.SO_RCVBUF, 1<<30)
	require.Less(t, have, 1<<30)

	var out bytes.Buffer
	l := openLink(t, Config{Addrs: []netip.Addr{netip.MustParseAddr("127.0.71.1")}, UDPPort: freePort(t)}, 0)
	l.log, l.small = slog.New(slog.NewTextHandler(&out, nil)), false
	l.smallBuffer(have, have, "net.core.rmem_max")
	require.Empty(t, out.String())
	l.smallBuffer(have, 1<<30, "net.core.rmem_max")
	l.smallBuffer(have, 1<<30, "net.core.rmem_max")
	require.Equal(t, 1, bytes.Count(out.Bytes(), []byte("net.core.rmem_max")))
}

// A datagram longer than any packet of ours is dropped, whole or in part.
func TestUDPLinkTruncated(t *testing.T) {
	for _, m := range modes()[2:] {
		t.Run(m.name, func(t *testing.T) {
			from, to, dst := linkPair(t, m)
			from.sourcePort(0, 0)
			one := func(n int) train { return train{dst: dst, size: n, count: 1, total: n, bufs: [][]byte{pattern(n)}} }
			from.send([]train{one(singleBytes + 1), one(singleBytes), one(0)})
			got := await(t, to, 2)
			require.Len(t, got.data[0], singleBytes)
			require.Empty(t, got.data[1])
			require.EqualValues(t, 2, to.stats().ReceivedPackets)
		})
	}
}
