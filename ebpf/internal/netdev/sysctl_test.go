package netdev

import (
	"encoding/binary"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/testnet"
)

// TestKeepRouters: a default route from a router advertisement outlasts that a device begins to forward.
// Without care it does not.
func TestKeepRouters(t *testing.T) {
	testnet.Require(t, "root")
	if !HasIPv6() {
		t.Skip("no IPv6")
	}
	for name, turn := range map[string]func(fn func() error) error{
		"with care":    keepRouters,
		"without care": func(fn func() error) error { return fn() },
	} {
		t.Run(name, func(t *testing.T) {
			done := make(chan struct{})
			go func() { // its thread ends with it, and the namespace with the thread
				defer close(done)
				runtime.LockOSThread()
				advertised(t)
				require.NoError(t, turn(func() error { return WriteSysctl("ipv6/conf/own/forwarding", "1") }))
				require.Equal(t, name == "with care", hasDefault(t))
				is, err := ReadSysctl("ipv6/conf/host/accept_ra")
				require.NoError(t, err)
				require.Equal(t, "1", is)
			}()
			<-done
		})
	}
}

// advertised makes a namespace with device host, which has a default route of an advertisement, and device own.
func advertised(t *testing.T) {
	ns, err := netns.New()
	require.NoError(t, err)
	t.Cleanup(func() { _ = ns.Close() })
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "host"}, PeerName: "router"}))
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "own"}, PeerName: "other"}))
	for key, value := range map[string]string{
		"host/accept_dad": "0", "router/accept_dad": "0", "host/accept_ra": "1", "host/accept_ra_from_local": "1", "router/accept_ra": "0",
	} {
		require.NoError(t, WriteSysctl("ipv6/conf/"+key, value))
	}
	for _, name := range []string{"router", "host"} {
		l, err := netlink.LinkByName(name)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetUp(l))
	}
	router, err := net.InterfaceByName("router")
	require.NoError(t, err)
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255))
	advertisement := make([]byte, 16) // RFC 4861 4.2
	advertisement[0], advertisement[4] = 134, 64
	binary.BigEndian.PutUint16(advertisement[6:], 1800)
	to := &unix.SockaddrInet6{ZoneId: uint32(router.Index), Addr: [16]byte{0: 0xff, 1: 2, 15: 1}}
	for end := time.Now().Add(30 * time.Second); !hasDefault(t); time.Sleep(50 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "no route comes of the advertisement")
		_ = unix.Sendto(fd, advertisement, 0, to) // not before the link-local address is there
	}
}

func hasDefault(t *testing.T) bool {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
	require.NoError(t, err)
	return len(routes) > 0
}

func TestAtMost(t *testing.T) {
	require.Equal(t, "4096 131072 2097152", AtMost("4096\t1048576\t33554432", []int{128 << 10, 128 << 10, 2 << 20}))
	require.Equal(t, "4096 16384 4194304", AtMost("4096 16384 4194304", []int{8 << 20, 8 << 20, 8 << 20}))
	require.Equal(t, "1 7", AtMost("3 7", []int{1}))
	require.Empty(t, AtMost("", []int{1}))
}
