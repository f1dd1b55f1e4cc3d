package soft

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
)

func TestPathMTU(t *testing.T) {
	for _, a := range []string{"127.0.0.1", "127.0.71.2", "::1"} {
		m, err := pathMTU(netip.MustParseAddr(a))
		require.NoError(t, err)
		require.Equal(t, verbs.MTU4096, m)
	}
	_, err := pathMTU(netip.MustParseAddr("192.0.2.1"))
	require.ErrorIs(t, err, unix.EADDRNOTAVAIL)
	_, err = pathMTU(netip.MustParseAddr("::1%nowhere"))
	require.ErrorIs(t, err, unix.EADDRNOTAVAIL)

	all, err := net.Interfaces()
	require.NoError(t, err)
	for _, in := range all {
		addrs, err := in.Addrs()
		require.NoError(t, err)
		for _, a := range addrs {
			addr, _ := netip.AddrFromSlice(a.(*net.IPNet).IP)
			m, err := pathMTU(addr.Unmap())
			require.NoError(t, err)
			require.LessOrEqual(t, m.Bytes()+mtuHeaders, in.MTU)
		}
	}
}

// TestPathMTUToAHost: the route's, of both families.
func TestPathMTUToAHost(t *testing.T) {
	for _, a := range []string{"127.0.0.1", "::ffff:127.0.0.1", "::1"} {
		m, err := PathMTU(netip.MustParseAddr(a))
		require.NoError(t, err)
		require.Equal(t, verbs.MTU4096, m)
	}
}

// TestDeviceMTU: the narrowest interface counts.
func TestDeviceMTU(t *testing.T) {
	all, err := net.InterfaceAddrs()
	require.NoError(t, err)
	d, narrowest := &Device{}, verbs.MTU4096
	for _, a := range all {
		addr, _ := netip.AddrFromSlice(a.(*net.IPNet).IP)
		if addr = addr.Unmap(); addr.IsLinkLocalUnicast() {
			continue
		}
		m, err := pathMTU(addr)
		require.NoError(t, err)
		narrowest = min(narrowest, m)
		d.cfg.Addrs = append(d.cfg.Addrs, addr)
	}
	require.NoError(t, d.findMTU())
	require.Equal(t, narrowest, d.mtu)
	d.cfg.MTU = verbs.MTU512
	require.NoError(t, d.findMTU())
	require.Equal(t, verbs.MTU512, d.mtu)
}

func TestMTUWithin(t *testing.T) {
	for mtu, want := range map[int]verbs.MTU{
		0: 0, 335: 0, 336: verbs.MTU256, 1103: verbs.MTU512, 1104: verbs.MTU1024, 1500: verbs.MTU1024,
		4175: verbs.MTU2048, 4176: verbs.MTU4096, 9000: verbs.MTU4096, 65536: verbs.MTU4096,
	} {
		require.Equal(t, want, mtuWithin(mtu), "%d", mtu)
	}
}
