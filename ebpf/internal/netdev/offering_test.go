package netdev

import (
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/testnet"
)

// inNamespace runs fn in a network namespace that has the devices d0 and d1 with their
// far ends.
func inNamespace(t *testing.T, fn func(nl *netlink.Handle)) {
	t.Helper()
	testnet.InNamespace(t, func() {
		ip(t, "link add d0 type veth peer name p0", "link add d1 type veth peer name p1", "link set p0 up", "link set p1 up",
			"link set d0 up", "link set d1 up", "addr add 10.1.0.1/24 dev d0", "addr add 10.2.0.1/24 dev d1")
		nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		require.NoError(t, err)
		defer nl.Close()
		fn(nl)
	})
}

func ip(t *testing.T, commands ...string) {
	t.Helper()
	for _, c := range commands {
		out, err := exec.Command("ip", strings.Fields(c)...).CombinedOutput()
		require.NoError(t, err, "%s: %s", c, out)
	}
}

// The routes are listed where something has changed, or the policy is another one, and in
// between for one part of the time.
func TestOffering(t *testing.T) {
	inNamespace(t, func(nl *netlink.Handle) {
		var o Offering
		none, all := new(int), new(int)
		names := func(policy *int) (list []string) {
			t.Helper()
			links, addrs, err := List(nl)
			require.NoError(t, err)
			found, err := o.Names(nl, links, addrs, nil, policy, func(netip.Prefix) bool { return policy == all })
			require.NoError(t, err)
			for n := range found {
				list = append(list, n)
			}
			slices.Sort(list)
			return list
		}
		require.Empty(t, names(none))
		require.Equal(t, []string{"d0", "d1"}, names(all))
		require.Empty(t, names(none))

		o.pace.at = time.Now().Add(-time.Second)
		ip(t, "route add default via 10.2.0.2")
		require.Empty(t, names(none), "no message")
		o.Changed()
		o.pace.took = time.Second
		require.Empty(t, names(none), "not yet")
		require.InDelta(t, paceShare-1, o.Waits().Seconds(), 1)
		require.Zero(t, o.Waits(), "it has told")
		o.pace.took = time.Millisecond
		require.Equal(t, []string{"d1"}, names(none))

		ip(t, "route del default")
		require.Equal(t, []string{"d1"}, names(none))
		o.pace.at = time.Now().Add(-2 * routesAge)
		require.Empty(t, names(none), "a message was lost")
	})
}

// Names of the configuration need no routes.
func TestOfferingNamed(t *testing.T) {
	var o Offering
	found, err := o.Names(nil, nil, nil, []string{"eth7"}, nil, nil)
	require.NoError(t, err)
	require.Equal(t, map[string]bool{"eth7": true}, found)
	o.Changed()
	_, err = o.Names(nil, nil, nil, []string{"eth7"}, nil, nil)
	require.NoError(t, err)
	require.Zero(t, o.Waits(), "nothing is to be listed")
}

// A device leads where it has a route, and a socket that is bound to one stays there.
func TestRoutes(t *testing.T) {
	inNamespace(t, func(nl *netlink.Handle) {
		index := func(name string) uint32 {
			l, err := nl.LinkByName(name)
			require.NoError(t, err)
			return uint32(l.Attrs().Index)
		}
		d0, d1 := index("d0"), index("d1")
		from, to := netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("10.9.0.7")
		ip(t, "route add default via 10.1.0.2", "route add 10.9.0.0/16 via 10.2.0.2")
		require.True(t, Leads(nl, from, to, 0, d0))
		require.True(t, Leads(nl, from, to, 0, d1))
		ip(t, "route del default", "route del 10.9.0.0/16", "route add 10.9.0.0/16 via 10.1.0.2")
		require.False(t, Leads(nl, from, to, 0, d1))
		for bound, want := range map[uint32]uint32{0: d0, d0: d0, d1: d1} {
			by, err := RouteBy(nl, from, to, 0, bound)
			require.NoError(t, err)
			require.Equal(t, want, by, "bound to %d", bound)
		}
		ip(t, "route del 10.9.0.0/16")
		_, err := RouteBy(nl, from, to, 0, 0)
		require.ErrorIs(t, err, unix.ENETUNREACH)
	})
}

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
