package gateway

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/host"
)

func TestParseDebug(t *testing.T) {
	k, err := parseDebug([]string{"PATH=/bin", "SMCGW_DEBUG_PANIC=carrying:7000:2", "SMCGW_DEBUG_HOLD=offered:7000,negotiating:7001", "SMCGW_DEBUG_X="})
	require.NoError(t, err)
	require.Equal(t, []string{"SMCGW_DEBUG_HOLD=offered:7000,negotiating:7001", "SMCGW_DEBUG_PANIC=carrying:7000:2"}, k.list())

	client := host.Tuple{Local: netip.MustParseAddrPort("10.0.0.1:40000"), Remote: netip.MustParseAddrPort("10.0.0.2:7000")}
	server := host.Tuple{Local: client.Remote, Remote: client.Local}
	require.False(t, k.panics.meet(stepCarrying, client, config.SideServer), "another port")
	require.False(t, k.panics.meet(stepClosing, client, config.SideClient), "another step")
	require.True(t, k.panics.meet(stepCarrying, client, config.SideClient))
	require.True(t, k.panics.meet(stepCarrying, server, config.SideServer))
	require.False(t, k.panics.meet(stepCarrying, server, config.SideServer), "used up")
	other := host.Tuple{Local: netip.MustParseAddrPort("10.0.0.2:7001"), Remote: client.Local}
	for range 3 {
		require.True(t, k.hold.meet(stepNegotiating, other, config.SideServer), "without a count: all")
		require.True(t, k.hold.meet(stepOffered, server, config.SideServer))
	}

	k, err = parseDebug([]string{"PATH=/bin"})
	require.NoError(t, err)
	require.Nil(t, k)
	require.Empty(t, k.list())
	require.False(t, (&flow{g: &gateway{}}).step(stepOffered))

	for _, wrong := range []string{
		"SMCGW_DEBUG_PANIK=carrying:1", "SMCGW_DEBUG_PANIC=flying:1", "SMCGW_DEBUG_PANIC=carrying",
		"SMCGW_DEBUG_HOLD=carrying:70000", "SMCGW_DEBUG_HOLD=carrying:1:x", "SMCGW_DEBUG_HOLD=carrying:1:2:3",
		"SMCGW_DEBUG_TAKEOVER=soon",
	} {
		_, err := parseDebug([]string{wrong})
		require.ErrorContains(t, err, wrong)
	}
}
