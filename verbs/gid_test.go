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
