package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// upperDevice is what a host's addresses move to.
const upperDevice = "up0"

// deviceKind is a kind of device above eth0, or with eth0 as its port.
type deviceKind struct {
	name  string
	make  []string // ip commands
	both  bool     // both hosts need it to talk at all
	alone string   // the reason why connections are native; none: they are carried
}

var deviceKinds = []deviceKind{
	{name: "macvlan bridge", make: []string{"link add link eth0 name up0 type macvlan mode bridge"}},
	{name: "macvlan private", make: []string{"link add link eth0 name up0 type macvlan mode private"}},
	{name: "macvlan vepa", make: []string{"link add link eth0 name up0 type macvlan mode vepa"}},
	{name: "macvlan passthru", make: []string{"link add link eth0 name up0 type macvlan mode passthru"}},
	{name: "ipvlan", make: []string{"link add link eth0 name up0 type ipvlan mode l2"}, alone: "address"},
	{name: "vlan", make: []string{"link add link eth0 name up0 type vlan id 77"}, both: true},
	{name: "bond", make: []string{
		"link add up0 type bond mode active-backup", "link set eth0 down", "link set eth0 master up0",
	}},
	{name: "bridge", make: []string{"link add up0 type bridge", "link set eth0 master up0"}},
}

// ip runs an ip command on a host.
func ip(h *testnet.Host, args string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return h.Run(ctx, "ip", strings.Fields(args)...)
}

// moveTo gives the addresses and routes of a host to a device of this kind.
func (k deviceKind) moveTo(t *testing.T, h *testnet.Host) {
	t.Helper()
	do := func(args string) {
		out, err := ip(h, args)
		require.NoError(t, err, "ip %s: %s", args, out)
	}
	do("addr flush dev eth0")
	for _, args := range k.make {
		do(args)
	}
	do("link set eth0 up")
	do("link set up0 up")
	do(fmt.Sprintf("addr add %s/24 dev up0", h.Addr4))
	do(fmt.Sprintf("-6 addr add %s/64 dev up0 nodad", h.Addr6))
}

// missing says why this kernel has no such device.
func (k deviceKind) missing(h *testnet.Host) string {
	defer func() { _, _ = ip(h, "link del up0") }()
	if out, err := ip(h, k.make[0]); err != nil {
		return strings.TrimSpace(out) + " (ip " + k.make[0] + ")"
	}
	return ""
}

// TestDeviceKinds: connections by devices above the wire's are carried, whichever of
// the hosts has such a device, or the reason says why not.
func TestDeviceKinds(t *testing.T) {
	for _, k := range deviceKinds {
		t.Run(k.name, func(t *testing.T) {
			for _, where := range []string{"client", "server", "both"} {
				if k.both && where != "both" {
					continue
				}
				t.Run(where, func(t *testing.T) { k.test(t, where) })
			}
		})
	}
	// Their sockets are bound to a device, or their packets are others.
	for _, k := range []string{"vrf", "wireguard"} {
		t.Run(k, func(t *testing.T) { t.Skipf("SKIPPED: not tried by this test: %s", k) })
	}
}

func (k deviceKind) test(t *testing.T, where string) {
	w := newWorld(t, testnet.Config{})
	if why := k.missing(w.h3); why != "" {
		t.Skipf("SKIPPED: this kernel has no %s: %s", k.name, why)
	}
	upper := settings{Devices: upperDevice}
	on := map[*testnet.Host]settings{}
	if where != "server" {
		k.moveTo(t, w.h1)
		on[w.h1] = upper
	}
	if where != "client" {
		k.moveTo(t, w.h2)
		on[w.h2] = upper
	}
	w.serve(w.h2)
	w.up(w.h1, on[w.h1])
	w.up(w.h2, on[w.h2])
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		if k.alone != "" {
			client, server := local(k.alone), nothing
			if where == "server" {
				client, server = remote("peer_no_option"), local(k.alone)
			}
			fallback{w: w, t: t, from: w.h1, to: addr(w.h2, echoPort), client: client, server: server}.ping()
			return
		}
		w.carried(t, w.h1, addr(w.h2, echoPort))
		e := w.mustApp(w.h1, "transfer", "-up", "3000000", "-down", "3000000", "-to", addr(w.h2, transferPort))
		w.carriedBy(e, w.via)
		require.Zero(t, e.Repeated)
	})
}
