package ebpf

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

// A host may have more addresses and devices than the programs have room for, as nodes of a
// cluster with IPVS, and routers with a VLAN for each customer: it starts, and the rest is
// native.
func TestMoreThanThereIsRoomFor(t *testing.T) {
	t.Parallel()
	h1, _ := newPair(t)
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
