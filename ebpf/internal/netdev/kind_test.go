package netdev

import (
	"net"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
)

// TestUsesOf: a device whose packets another one has gets no programs, and a name for what to
// name in its place.
func TestUsesOf(t *testing.T) {
	at := func(index int, name, encap string, master int) netlink.LinkAttrs {
		return netlink.LinkAttrs{Index: index, Name: name, EncapType: encap, MasterIndex: master, NetNsID: -1}
	}
	passthru, ipvlan := at(21, "mv", "ether", 0), at(22, "iv", "ether", 0)
	passthru.ParentIndex, ipvlan.ParentIndex = 5, 6
	priority, numbered := at(23, "eth3.0", "ether", 0), at(24, "eth0.7", "ether", 0)
	priority.ParentIndex, numbered.ParentIndex = 12, 4
	links := []netlink.Link{
		&netlink.Bridge{LinkAttrs: at(1, "br0", "ether", 0)}, &netlink.Vrf{LinkAttrs: at(2, "red", "ether", 0)},
		&netlink.GenericLink{LinkAttrs: at(3, "ovs-system", "ether", 0), LinkType: "openvswitch"},
		&netlink.Veth{LinkAttrs: at(4, "eth0", "ether", 0)}, &netlink.Veth{LinkAttrs: at(5, "below", "ether", 0)}, &netlink.Veth{LinkAttrs: at(6, "eth1", "ether", 0)},
		&netlink.Veth{LinkAttrs: at(11, "eth2", "ether", 1)}, &netlink.Veth{LinkAttrs: at(12, "eth3", "ether", 2)}, &netlink.Veth{LinkAttrs: at(13, "eth4", "ether", 3)},
		&netlink.Ifb{LinkAttrs: at(14, "ifb0", "ether", 0)}, &netlink.IPoIB{LinkAttrs: at(15, "ib0", "infiniband", 0)},
		&netlink.Device{LinkAttrs: at(16, "can0", "can", 0)}, &netlink.Iptun{LinkAttrs: at(17, "tunl0", "ipip", 0)},
		&netlink.Macvlan{LinkAttrs: passthru, Mode: netlink.MACVLAN_MODE_PASSTHRU}, &netlink.IPVlan{LinkAttrs: ipvlan},
		&netlink.Vlan{LinkAttrs: priority}, &netlink.Vlan{LinkAttrs: numbered, VlanId: 7},
	}
	for name, want := range map[string]Use{
		"br0": {Programs: true}, "eth0": {Programs: true}, "eth1": {Programs: true}, "eth3": {Programs: true, Tagged: true}, "eth3.0": {Programs: true}, "mv": {Programs: true},
		"eth2":  {Why: "is a port of br0: name that"},
		"red":   {Why: "is a VRF: name its ports"},
		"eth4":  {Why: "is a port of Open vSwitch: name its bridge"},
		"ifb0":  {Why: "holds back the packets of another device: name that"},
		"below": {Why: "has no packets of its own: name the macvlan device on it"},
		"can0":  {Why: "is of the kind can, which carries no offers: name another"},
		"ib0":   {Why: "is one of IPoIB: add ib to carriers"},
		"tunl0": {Programs: true, Why: "is a tunnel without a far end, by which no answer comes: name another"},
		"iv":    {Programs: true, Why: "shares the address of the device below it: name that"},
	} {
		i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == name })
		require.Equal(t, want, UsesOf(links, false)[links[i].Attrs().Index], name)
	}
	require.Equal(t, Use{Programs: true}, UsesOf(links, true)[15], "with ib in carriers")
}

// TestLookedAt: what is named and carries no offer is told, with the reason.
func TestLookedAt(t *testing.T) {
	links := []netlink.Link{
		&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: 1, Name: "eth0"}}, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: 2, Name: "eth1"}},
		&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: 3, Name: "eth2"}},
	}
	uses := map[int]Use{1: {Programs: true}, 2: {Why: "is a port of br0: name that"}, 3: {Programs: true}}
	first := func(index int) bool { return index == 1 }
	all := map[string]bool{"eth0": true, "eth1": true, "eth2": true, "eth9": true}
	require.Equal(t, &Looked{
		Devices: []string{"eth0"},
		Missing: []string{
			"devices: eth1 is a port of br0: name that", "devices: eth2 could not be given programs: the log says why",
			"devices: there is no network device eth9 here: see ip link, and correct devices",
		},
	}, LookedAt(links, uses, []string{"eth0", "eth1", "eth2", "eth9"}, all, first))
	require.Equal(t, &Looked{Devices: []string{"eth0"}}, LookedAt(links, uses, nil, all, first), "the default takes what it finds")
	require.Equal(t, &Looked{
		Missing: []string{"devices: no device has a default route or a route to a peer of a rule: name devices, or add a route"},
	}, LookedAt(links, uses, nil, nil, first))
	require.Equal(t, &Looked{Missing: []string{"devices: eth1 is a port of br0: name that"}}, LookedAt(links, uses, nil, map[string]bool{"eth1": true}, first))
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

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
