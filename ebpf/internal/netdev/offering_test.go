package netdev

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
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
