package verbs

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// IPv4 addresses are mapped, as ibv_query_gid(3) gives them for RoCEv2.
func TestGID(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	require.Equal(t, GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}, GIDOf(v4))
	require.Equal(t, GID{0xfd, 15: 1}, GIDOf(v6))
	require.Equal(t, v4, GIDOf(v4).Addr())
	require.Equal(t, v6, GIDOf(v6).Addr())
	require.Equal(t, GIDOf(v4), GIDOf(netip.MustParseAddr("::ffff:10.0.0.1")))
	require.Equal(t, GIDOf(netip.MustParseAddr("fe80::1")), GIDOf(netip.MustParseAddr("fe80::1%lo")))
	require.Equal(t, "::ffff:10.0.0.1", GIDOf(v4).String())
	require.Equal(t, "fd00::1", GIDOf(v6).String())
	require.Equal(t, netip.IPv6Unspecified(), GID{}.Addr())
	text, err := json.Marshal(map[string]GID{"gid": GIDOf(v4)})
	require.NoError(t, err)
	require.JSONEq(t, `{"gid":"::ffff:10.0.0.1"}`, string(text))
}

// A table as adapters have it: each address as RoCE v1 and as v2, holes, and an
// address that two network devices have (a VLAN beside its parent).
func TestGIDIndex(t *testing.T) {
	a, b := GIDOf(netip.MustParseAddr("10.0.0.1")), GIDOf(netip.MustParseAddr("fe80::1"))
	table := []GIDEntry{
		{},
		{GID: a, Type: GIDTypeRoCEv1, Ifindex: 2},
		{GID: a, Type: GIDTypeRoCEv2, Ifindex: 2},
		{GID: a, Type: GIDTypeRoCEv2, Ifindex: 7},
		{},
		{GID: b, Type: GIDTypeIB},
	}
	require.Equal(t, 2, GIDIndex(table, a, 0))
	require.Equal(t, 2, GIDIndex(table, a, 2))
	require.Equal(t, 3, GIDIndex(table, a, 7))
	require.Equal(t, -1, GIDIndex(table, a, 8))
	require.Equal(t, 5, GIDIndex(table, b, 0))
	require.Equal(t, 5, GIDIndex(table, b, 7), "its network device is not known")
	require.Equal(t, -1, GIDIndex(table, GID{}, 0), "a hole is no address")
	long := append(make([]GIDEntry, 254), table...)
	require.Equal(t, -1, GIDIndex(long, a, 0), "beyond what an address handle can name")
	require.Equal(t, 255, GIDIndex(long[1:], a, 0))
	require.True(t, table[4].Empty())
	require.Equal(t, "RoCE v2", table[3].Type.String())
	require.Equal(t, "InfiniBand", LinkLayerInfiniBand.String())
}
