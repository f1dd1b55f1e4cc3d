package ebpf

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Rules and routes of ours that somebody removes are put back at once, and those
// of others stay away.
func TestRoutingIsRepaired(t *testing.T) {
	requireRoot(t)
	h := newHost(t)
	before := h.attachments()
	d := h.open(config(nil))
	with := h.attachments()
	flush := map[string]func(cfg Config){
		"rules": func(cfg Config) {
			for _, f := range d.routing.families {
				rules, err := netlink.RuleList(f)
				require.NoError(t, err)
				for _, r := range rules {
					if r.Table == cfg.Table || r.Table == cfg.Table+1 {
						r.Family = f
						require.NoError(t, netlink.RuleDel(&r))
					}
				}
			}
		},
		"routes": func(cfg Config) {
			for _, f := range d.routing.families {
				for _, table := range []int{cfg.Table, cfg.Table + 1} {
					routes, err := netlink.RouteListFiltered(f, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
					require.NoError(t, err)
					for _, r := range routes {
						require.NoError(t, netlink.RouteDel(&r))
					}
				}
			}
		},
	}
	for what, remove := range flush {
		for range 3 {
			h.do(func() { remove(d.cfg) })
			require.Eventually(t, func() bool { return slices.Equal(with, h.attachments()) }, 30*time.Second, 5*time.Millisecond, what)
		}
	}
	h.do(func() { // what is not ours
		r := netlink.NewRule()
		r.Priority, r.Table, r.Family = 100, 77, unix.AF_INET
		require.NoError(t, netlink.RuleAdd(r))
		require.NoError(t, netlink.RuleDel(r))
	})
	require.NoError(t, d.Close())
	require.Equal(t, before, h.attachments())
}

// A message about a route is read as far as it goes.
func TestRouteTableOfAMessage(t *testing.T) {
	msg := make([]byte, unix.SizeofRtMsg)
	msg[4] = 200 // rtm_table
	require.Equal(t, 200, routeTable(msg))
	msg = append(msg, 8, 0, unix.RTA_TABLE, 0, 1, 2, 3, 4)
	require.NotEqual(t, 200, routeTable(msg))
	for n := range msg {
		_ = routeTable(msg[:n])
	}
	require.Zero(t, routeTable(nil))
}
