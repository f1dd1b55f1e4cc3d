package netdev

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

// A device that only holds back the packets of another one, which has seen them, gets no
// programs: they would take netstack's segments for the application's.
func TestWanted(t *testing.T) {
	attrs := netlink.LinkAttrs{Name: "dev0", EncapType: "ether"}
	require.True(t, Wanted(&netlink.Veth{LinkAttrs: attrs}, nil))
	require.False(t, Wanted(&netlink.Ifb{LinkAttrs: attrs}, nil))
}

// TestOneWay: a tunnel without a far end is one by which nothing can be answered.
func TestOneWay(t *testing.T) {
	far4, far6 := net.IPv4(10, 77, 0, 2), net.ParseIP("fd77::2")
	for _, tc := range []struct {
		link netlink.Link
		want bool
	}{
		{&netlink.Iptun{}, true}, // tunl0
		{&netlink.Iptun{Remote: net.IPv4zero}, true},
		{&netlink.Iptun{Remote: far4}, false},
		{&netlink.Iptun{Remote: far4, FlowBased: true}, true},
		{&netlink.Ip6tnl{Remote: net.IPv6zero}, true}, // ip6tnl0
		{&netlink.Ip6tnl{Remote: far6}, false},
		{&netlink.Sittun{Remote: net.IPv4zero}, true}, // sit0
		{&netlink.Sittun{Remote: far4}, false},
		{&netlink.Gretun{Remote: net.IPv4zero}, true}, // gre0
		{&netlink.Gretun{Remote: far6}, false},
		{&netlink.Gretun{FlowBased: true}, true},
		{&netlink.IPVlan{Mode: netlink.IPVLAN_MODE_L3}, false},
		{&netlink.IPVlan{Mode: netlink.IPVLAN_MODE_L3S}, true},
		{&netlink.Wireguard{}, false},
		{&netlink.Vxlan{}, false},
		{&netlink.Veth{}, false},
	} {
		require.Equal(t, tc.want, OneWay(tc.link), "%s %+v", tc.link.Type(), tc.link)
	}
}
