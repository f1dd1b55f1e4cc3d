package policy

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCarries(t *testing.T) {
	q := netip.MustParsePrefix
	p, err := Compile([]Rule{
		{Peers: []netip.Prefix{q("10.1.0.0/16")}, Action: ActionPass},
		{Peers: []netip.Prefix{q("10.2.0.0/16"), q("fd00::/8")}, Action: ActionAccelerate},
	}, nil)
	require.NoError(t, err)
	for prefix, want := range map[string]bool{
		"10.1.0.0/24": false, "10.2.3.0/24": true, "10.0.0.0/8": true, "0.0.0.0/0": true, "192.168.0.0/16": false,
		"fd77::/64": true, "2001:db8::/32": false, "::/0": true,
	} {
		require.Equal(t, want, p.Carries(q(prefix)), prefix)
	}
	p, err = Compile([]Rule{{Ports: []uint16{6379}, Action: ActionAccelerate}}, nil)
	require.NoError(t, err)
	require.True(t, p.Carries(q("192.168.0.0/16")), "every peer")
	p, err = Compile(nil, nil)
	require.NoError(t, err)
	require.False(t, p.Carries(q("0.0.0.0/0")))
}
