package ebpf

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// blockedAt waits until what is known of the legs on w0 is this.
func blockedAt(t *testing.T, d *Datapath, want ...BlockedLegs) {
	t.Helper()
	require.Eventually(t, func() bool {
		have := d.BlockedLegs()
		if len(have) != len(want) {
			return false
		}
		for i := range have {
			if have[i] != want[i] {
				return false
			}
		}
		return true
	}, patience, 5*time.Millisecond, "want %v, have %v", want, d.BlockedLegs())
}

// Where the host's rules drop what legs send, and not what the wire brings,
// connections are native, with the reason and the place, from the first one on; and
// carried as soon as the rule is gone. A rule of IPv4 does not concern IPv6.
func TestProof(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	for _, c := range []struct {
		name, rule string
		way        LegWay
	}{
		{"input", `chain c { type filter hook input priority 0; meta nfproto ipv4 ether saddr 02:53:4d:47:57:02 counter drop; }`, LegInput},
		{"prerouting", `chain c { type filter hook prerouting priority -300; meta nfproto ipv4 ether saddr 02:53:4d:47:57:02 counter drop; }`, LegInput},
		{"ttl", `chain c { type filter hook input priority 0; meta nfproto ipv4 ip ttl > 128 counter drop; }`, LegInput},
		{"output", `chain c { type filter hook output priority 0; ip daddr != 10.77.0.2 tcp flags syn drop; }`, LegOutput},
		{"established", `chain c { type filter hook input priority 0; meta nfproto ipv4 ether saddr 02:53:4d:47:57:02 tcp flags & syn == 0 drop; }`, LegConfirm},
	} {
		t.Run(c.name, func(t *testing.T) {
			h1, h2 := newPair(t)
			h2.echo("6379")
			h1.nft("table inet blocks { " + c.rule + "; }")
			d := h1.open(config(accelerate(6379)))
			blocked := BlockedLegs{Device: "w0", Way: c.way}
			require.Equal(t, []BlockedLegs{blocked}, d.BlockedLegs(), "known when it is open")
			require.NoError(t, h1.dial("10.77.0.2:6379", patience))
			require.EqualValues(t, 1, nativeCount(t, d, SideClient, ReasonAppLegBlocked))
			require.NoError(t, h1.dial("[fd77::2]:6379", patience))
			require.EqualValues(t, 1, stat(t, d, "offered"), "by IPv6")
			h1.nft("delete table inet blocks")
			blockedAt(t, d)
			require.NoError(t, h1.dial("10.77.0.2:6379", patience))
			require.EqualValues(t, 2, stat(t, d, "offered"))
			h1.nft("table inet blocks { " + c.rule + "; }")
			blockedAt(t, d, blocked)
		})
	}
}

// A server accepts no offer where its legs are blocked.
func TestProofOfServer(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	s := newServer(t, config(accelerate(6379)))
	s.h2.nft(`table inet blocks { chain c { type filter hook input priority 0; ether saddr 02:53:4d:47:57:02 drop; }; }`)
	blockedAt(t, s.d, BlockedLegs{Device: "w0", Way: LegInput}, BlockedLegs{Device: "w0", IPv6: true, Way: LegInput})
	for _, v6 := range []bool{false, true} {
		syn := s.syn(v6, 1000)
		s.send(syn)
		require.True(t, s.kernelAnswers(syn, patience))
	}
	require.EqualValues(t, 2, nativeCount(t, s.d, SideServer, ReasonAppLegBlocked))
}

// What a proof needs it finds on devices of every kind, and it leaves nothing.
func TestProofAddresses(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	for name, addrs := range map[string][]string{
		"network": {"10.81.0.1/24", "fd81::1/64"}, "small": {"10.81.0.1/30", "fd81::1/126"},
		"pair": {"10.81.0.0/31", "fd81::/127"}, "single": {"10.81.0.1/32", "fd81::1/128"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.do(func() {
				require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "w0"}, PeerName: "w1"}))
				for _, dev := range []string{"w0", "w1"} {
					l, err := netlink.LinkByName(dev)
					require.NoError(t, err)
					require.NoError(t, netlink.LinkSetUp(l))
				}
				l, err := netlink.LinkByName("w0")
				require.NoError(t, err)
				for i, a := range addrs {
					addr, err := netlink.ParseAddr(a)
					require.NoError(t, err)
					addr.Flags = unix.IFA_F_NODAD
					require.NoError(t, netlink.AddrAdd(l, addr))
					router := net.ParseIP([]string{"10.81.0.9", "fd81::9"}[i])
					if name == "pair" || name == "single" { // as clouds do it
						require.NoError(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: router, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9}}))
						require.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: netlink.NewIPNet(router), Scope: netlink.SCOPE_LINK}))
						require.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: router}))
					}
				}
			})
			before := h.neighbours()
			d := h.open(config(accelerate(6379)))
			// It may be making another one, because the device has just come up.
			require.Eventually(t, func() bool { return d.proved("w0") && slices.Equal(before, h.neighbours()) && len(flows(t, d)) == 0 },
				patience, 5*time.Millisecond)
		})
	}
}

// proved reports whether the legs on a device are proved in both families.
func (d *Datapath) proved(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dev := range d.devices {
		if dev.name == name {
			return dev.legs == [2]LegWay{}
		}
	}
	return false
}

// neighbours lists those of w0.
func (h *host) neighbours() (list []string) {
	h.do(func() {
		index, err := linkIndex("w0")
		require.NoError(h.t, err)
		all, err := netlink.NeighList(index, 0)
		require.NoError(h.t, err)
		for _, n := range all {
			if !n.IP.IsMulticast() {
				list = append(list, n.IP.String())
			}
		}
	})
	return list
}

// A proof never takes an address of the host for a neighbour.
func TestProofKnowsOwnAddresses(t *testing.T) {
	t.Parallel()
	h1, _ := newPair(t)
	d := h1.open(config(accelerate(6379)))
	for addr, own := range map[string]bool{"10.77.0.1": true, "10.77.0.3": false, "fd77::1": true, "fd77::3": false} {
		require.Equal(t, own, d.isOwn(netip.MustParseAddr(addr)), addr)
	}
}

// A reset shows no way: a kernel sends it for a socket that has gone, without its mark.
func TestResetShowsNoWay(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	c := newCellHost(t)
	for _, addrs := range cellAddrs {
		k, err := Tuple{Local: addrs[0], Remote: addrs[1]}.key()
		require.NoError(t, err)
		for class, want := range map[string]uint64{"OUT_SEGMENT": cellValue(0), "NET_RESET": cellValue(cellMark)} {
			c.enterCell(k, "OUT_SEGMENT", int(StateCarrying))
			c.do(func() {
				require.Equal(t, "legs", c.run("OUT_SEGMENT", addrs[0], addrs[1], cellPacket(t, class, addrs[0], addrs[1])))
			})
			var got smcgwFlow
			require.NoError(t, c.d.objs.Flows.Lookup(k, &got))
			require.Equal(t, want, got.Mark, class)
		}
	}
}
