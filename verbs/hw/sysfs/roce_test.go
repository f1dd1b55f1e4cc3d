package sysfs

import (
	"io/fs"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRoCEPorts: the addresses that have lost their UDP port to an adapter are those
// of its GIDs, of its network devices, of what stands on these, and of services.
func TestRoCEPorts(t *testing.T) {
	at := netip.MustParseAddr
	local := map[string][]netip.Addr{
		"ens1f0":     {at("10.0.0.1"), at("10.0.0.99"), at("fd00::1")},
		"ens1f0.100": {at("10.100.0.1")},
		"br0":        {at("10.7.0.1")},
		"ens1f1":     {at("10.9.0.1")}, // of this namespace; the adapter's is another
		"eth0":       {at("192.0.2.1")},
		"lo":         {at("127.0.0.1"), at("::1"), at("203.0.113.1")},
	}
	root := loadTree(t, "testdata/mlx5.tree")
	sys, err := fs.Sub(root, "sys")
	require.NoError(t, err)
	list, err := adapters(sys)
	require.NoError(t, err)
	m := rocePorts(sys, list, local)
	for _, a := range []string{"10.0.0.1", "10.0.0.99", "fd00::1", "10.100.0.1", "10.7.0.1", "203.0.113.1"} {
		require.Equal(t, RoCEPort{Name: "mlx5_0/1", Hardware: true}, m[at(a)], a)
	}
	for _, a := range []string{"192.0.2.1", "10.9.0.1", "127.0.0.1", "::1"} {
		require.NotContains(t, m, at(a))
	}
}

// TestRoCEPortsOfOthers: iWARP, EFA and InfiniBand do not use UDP, and software is
// not hardware.
func TestRoCEPortsOfOthers(t *testing.T) {
	for file, want := range map[string]RoCEPorts{
		"efa": {}, "ib": {},
		"irdma": {
			netip.MustParseAddr("10.1.0.2"):                 {Name: "irdma1/1", Hardware: true},
			netip.MustParseAddr("fe80::6a05:caff:fe01:204"): {Name: "irdma1/1", Hardware: true},
		},
		"rxe": {
			netip.MustParseAddr("10.77.0.2"):            {Name: "rxe0/1"},
			netip.MustParseAddr("fd77::2"):              {Name: "rxe0/1"},
			netip.MustParseAddr("fe80::5054:ff:fe77:2"): {Name: "rxe0/1"},
		},
	} {
		sys, err := fs.Sub(loadTree(t, "testdata/"+file+".tree"), "sys")
		require.NoError(t, err)
		list, err := adapters(sys)
		require.NoError(t, err)
		require.Equal(t, want, rocePorts(sys, list, nil), file)
	}
}

// TestRoCEPortsTwice: an address of rxe on an adapter's network device is the
// adapter's.
func TestRoCEPortsTwice(t *testing.T) {
	a := netip.MustParseAddr("10.0.0.1")
	hard, soft := RoCEPort{Name: "mlx5_0/1", Hardware: true}, RoCEPort{Name: "rxe0/1"}
	for _, order := range [][]RoCEPort{{hard, soft}, {soft, hard}} {
		m := RoCEPorts{}
		for _, at := range order {
			m.add(at, a)
		}
		require.Equal(t, hard, m[a])
	}
}
