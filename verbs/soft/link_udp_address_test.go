package soft

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestAddress(t *testing.T) {
	var b [unix.SizeofSockaddrInet6]byte
	rapid.Check(t, func(t *rapid.T) {
		var a netip.Addr
		if rapid.Bool().Draw(t, "ipv6") {
			a = netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "addr"))).Unmap()
		} else {
			a = netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "addr")))
		}
		want := netip.AddrPortFrom(a, rapid.Uint16().Draw(t, "port"))
		n := putAddress(&b, want)
		require.Equal(t, want, parseAddress(b[:n]))
		for i := range int(n) {
			if i != unix.SizeofSockaddrInet4 || a.Is4() {
				require.NotEqual(t, want, parseAddress(b[:i]), "%d bytes", i)
			}
		}
	})
}

func TestControl(t *testing.T) {
	merged := appendControl(nil, unix.IPPROTO_UDP, unix.UDP_GRO, 4, 1084)
	both := appendControl(merged, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 4, 0xb8|ecnCE)
	require.Len(t, both, 2*unix.CmsgSpace(4))
	require.LessOrEqual(t, len(both), controlSize)
	size, ce := parseControl(both)
	require.Equal(t, 1084, size)
	require.True(t, ce)
	size, ce = parseControl(appendControl(nil, unix.IPPROTO_IP, unix.IP_TOS, 4, ecnECT0))
	require.Zero(t, size)
	require.False(t, ce)
	for n := range len(both) {
		size, ce := parseControl(both[:n])
		require.False(t, ce && n < len(both)-4, "%d bytes", n)
		require.True(t, size == 1084 || n < len(merged), "%d bytes", n)
	}
}

func FuzzControl(f *testing.F) {
	f.Add([]byte{}, []byte{})
	f.Add(appendControl(nil, unix.IPPROTO_UDP, unix.UDP_GRO, 4, 1084), []byte{2, 0, 0, 1, 127, 0, 0, 1})
	f.Fuzz(func(t *testing.T, control, name []byte) {
		parseControl(control)
		a := parseAddress(name)
		if a.IsValid() {
			require.False(t, a.Addr().Is4In6())
			require.Empty(t, a.Addr().Zone())
		}
	})
}
