package ebpf

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

// A device that only holds back the packets of another one, which has seen them, gets no
// programs: they would take netstack's segments for the application's.
func TestWanted(t *testing.T) {
	attrs := netlink.LinkAttrs{Name: "dev0", EncapType: "ether"}
	require.True(t, wanted(&netlink.Veth{LinkAttrs: attrs}, nil))
	require.False(t, wanted(&netlink.Ifb{LinkAttrs: attrs}, nil))
}

// A host may have more addresses and devices than the programs have room for, as nodes of a
// cluster with IPVS, and routers with a VLAN for each customer: it starts, and the rest is
// native.
func TestMoreThanThereIsRoomFor(t *testing.T) {
	requireRoot(t)
	h1, h2 := newHost(t), newHost(t)
	pair(t, h1, h2)
	h1.do(func() {
		l, err := netlink.LinkByName("w0")
		require.NoError(t, err)
		for i := range 600 {
			a, err := netlink.ParseAddr(fmt.Sprintf("10.79.%d.%d/32", i/256, i%256))
			require.NoError(t, err)
			require.NoError(t, netlink.AddrAdd(l, a))
		}
		for i := range 20 {
			v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("x%d", i)}, PeerName: fmt.Sprintf("y%d", i)}
			require.NoError(t, netlink.LinkAdd(v))
		}
	})
	cfg := config(nil)
	cfg.maxOwn = 16
	d := h1.open(cfg)
	h1.do(func() {
		index, err := linkIndex("w0")
		require.NoError(t, err)
		require.True(t, d.isAttached(index), "the device of the offers comes first")
	})
	usage, err := d.MapUsage()
	require.NoError(t, err)
	for _, u := range usage {
		require.LessOrEqual(t, u.Entries, u.Capacity, u.Name)
	}
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
		require.Equal(t, tc.want, oneWay(tc.link), "%s %+v", tc.link.Type(), tc.link)
	}
}
