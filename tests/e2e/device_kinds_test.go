package e2e

import (
	"context"
	"crypto/ecdh"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// upperDevice is the device that a host's addresses move to.
const upperDevice = "up0"

// deviceKind is a kind of device above eth0, or with eth0 as its port.
type deviceKind struct {
	name string
	make []string // ip commands; the words of deviceWords are replaced
	// elsewhere says that the commands run in another namespace: like a container's, the device leaves the namespace
	// that has the device below it.
	elsewhere bool
	routed    bool // the peer finds the device by a route to that namespace
	tunnel    bool // eth0 keeps its addresses; the device has others
	vrf       bool // eth0 has the addresses; programs are bound to the device
	both      bool // hosts need it on both sides to communicate at all
	family    string
	alone     string // the reason why connections are native; empty: they are carried
	unheard   bool   // programs do not see what the device receives
	ipoib     bool   // the devices are those of ipoib_test.go
	carriers  string // of the configuration; empty: the default
}

var deviceKinds = []deviceKind{
	{name: "macvlan bridge", make: []string{"link add link eth0 name up0 type macvlan mode bridge"}},
	{name: "macvlan private", make: []string{"link add link eth0 name up0 type macvlan mode private"}},
	{name: "macvlan vepa", make: []string{"link add link eth0 name up0 type macvlan mode vepa"}},
	{name: "macvlan passthru", make: []string{"link add link eth0 name up0 type macvlan mode passthru"}},
	{name: "macvlan elsewhere", elsewhere: true, make: []string{"link add link eth0 name up0 netns NS type macvlan mode bridge"}},
	{name: "ipvlan", make: []string{"link add link eth0 name up0 type ipvlan mode l2"}, alone: "address"},
	{name: "ipvlan l2 elsewhere", elsewhere: true, make: []string{"link add link eth0 name up0 netns NS type ipvlan mode l2"}},
	{name: "ipvlan l3 elsewhere", elsewhere: true, routed: true, make: []string{"link add link eth0 name up0 netns NS type ipvlan mode l3"}},
	{name: "ipvlan l3s elsewhere", elsewhere: true, routed: true, alone: "address", unheard: true, make: []string{"link add link eth0 name up0 netns NS type ipvlan mode l3s"}},
	{name: "netkit", elsewhere: true, routed: true, make: []string{
		"link add pkNUMBER type netkit", "link set nk0 netns NS name up0", "link set pkNUMBER up",
		"route add LOCAL4/32 dev pkNUMBER", "-6 route add LOCAL6/128 dev pkNUMBER",
	}},
	{name: "vlan", make: []string{"link add link eth0 name up0 type vlan id 77"}, both: true},
	{name: "bond", make: []string{
		"link add up0 type bond mode active-backup", "link set eth0 down", "link set eth0 master up0",
	}},
	{name: "vlan on bond", both: true, make: []string{
		"link add below type bond mode balance-xor", "link set eth0 down", "link set eth0 master below", "link set below up",
		"link add link below name up0 type vlan id 77",
	}},
	{name: "bridge", make: []string{"link add up0 type bridge", "link set eth0 master up0"}},
	{name: "vrf", vrf: true, make: []string{"link add up0 type vrf table 77", "link set up0 up", "link set eth0 master up0"}},
	{name: "wireguard", tunnel: true, both: true, make: []string{"link add up0 type wireguard"}},
	{name: "ipip", tunnel: true, both: true, family: "ipv4", make: []string{"link add up0 type ipip local LOCAL4 remote PEER"}},
	{name: "gre", tunnel: true, both: true, make: []string{"link add up0 type gre local LOCAL4 remote PEER"}},
	{name: "sit", tunnel: true, both: true, family: "ipv6", make: []string{"link add up0 type sit local LOCAL4 remote PEER"}},
	{name: "ipoib", tunnel: true, both: true, ipoib: true, carriers: "ib, shm, soft"},
	{name: "vxlan", tunnel: true, both: true, make: []string{"link add up0 type vxlan id 77 dstport 4789 local LOCAL4 remote PEER"}},
}

// ip runs an ip command on a host.
func ip(h *testnet.Host, args string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return h.Run(ctx, "ip", strings.Fields(args)...)
}

// mustIP runs ip commands on a host.
func mustIP(t *testing.T, h *testnet.Host, all ...string) {
	t.Helper()
	for _, args := range all {
		out, err := ip(h, args)
		require.NoError(t, err, "ip %s: %s", args, out)
	}
}

// commands returns the commands of the kind for one host.
func (k deviceKind) commands(h, peer *testnet.Host) []string {
	words := strings.NewReplacer("NS", h.Namespace(), "NUMBER", fmt.Sprint(h.Addr4.As4()[3]),
		"LOCAL4", h.Addr4.String(), "LOCAL6", h.Addr6.String(), "PEER", peer.Addr4.String())
	all := make([]string, len(k.make))
	for i, args := range k.make {
		all[i] = words.Replace(args)
	}
	return all
}

// need skips the test if this kernel has no such device.
func (k deviceKind) need(t *testing.T, w *world) {
	t.Helper()
	if k.ipoib {
		return
	}
	first := k.commands(w.h3, w.h2)[0]
	out, err := ip(w.h3, first)
	if err == nil {
		mustIP(t, w.h3, "link del "+strings.Fields(first)[nameAt(first)])
		return
	}
	testnet.Lack(t, "kernel", fmt.Errorf("%s: %w: %s", k.name, err, strings.TrimSpace(out)))
}

// nameAt returns the index of the device's name in an ip link add command.
func nameAt(command string) int {
	for i, word := range strings.Fields(command) {
		if word == "name" {
			return i + 1
		}
	}
	return 2
}

// give gives a host a device of this kind and moves the host's addresses to it.
func (k deviceKind) give(t *testing.T, w *world, h, peer *testnet.Host) {
	t.Helper()
	on := h
	if k.elsewhere {
		on = w.h3
		require.NoError(t, on.SetSysctl("net.ipv4.ip_forward", "1"))
		require.NoError(t, on.SetSysctl("net.ipv6.conf.all.forwarding", "1"))
	}
	if !k.tunnel {
		mustIP(t, h, "addr flush dev eth0")
	}
	mustIP(t, on, k.commands(h, peer)...)
	if k.name == "wireguard" {
		exchangeKeys(t, w, h, peer)
	}
	if !k.elsewhere {
		mustIP(t, h, "link set eth0 up")
	}
	if k.vrf { // programs in a VRF have a loopback of their own
		h.Through("ip", "vrf", "exec", upperDevice)
		mustIP(t, h, "addr add 127.0.0.1/8 dev up0", "-6 addr add ::1/128 dev up0 nodad")
	}
	mustIP(t, h, "link set up0 up", fmt.Sprintf("addr add %s/24 dev %s", k.addr(h, false), k.offers()))
	if k.family != "ipv4" {
		mustIP(t, h, fmt.Sprintf("-6 addr add %s/64 dev %s nodad", k.addr(h, true), k.offers()))
	}
}

// join gives both hosts IPoIB devices with the MTU of connected mode.
func (k deviceKind) join(t *testing.T, w *world) *ipoibCable {
	t.Helper()
	cable, err := joinIPoIB(w.h1, w.h2, upperDevice)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cable.Close()) })
	for _, h := range []*testnet.Host{w.h1, w.h2} {
		k.give(t, w, h, h)
		mustIP(t, h, "link set up0 mtu 65520")
	}
	return cable
}

// offers returns the devices of a gateway's configuration.
func (k deviceKind) offers() string {
	if k.vrf {
		return "eth0"
	}
	return upperDevice
}

// addr returns the address that programs use.
func (k deviceKind) addr(h *testnet.Host, v6 bool) string {
	switch {
	case k.tunnel && v6:
		return fmt.Sprintf("fd77:0:0:c8::%d", h.Addr4.As4()[3])
	case k.tunnel:
		return fmt.Sprintf("10.77.200.%d", h.Addr4.As4()[3])
	case v6:
		return h.Addr6.String()
	}
	return h.Addr4.String()
}

// route tells a host without such a device how to reach the other's addresses.
func (k deviceKind) route(t *testing.T, w *world, h, peer *testnet.Host) {
	t.Helper()
	mustIP(t, h, fmt.Sprintf("route add %s/32 via %s", peer.Addr4, w.h3.Addr4),
		fmt.Sprintf("-6 route add %s/128 via %s", peer.Addr6, w.h3.Addr6))
}

// exchangeKeys makes a host and its peer know each other's keys.
func exchangeKeys(t *testing.T, w *world, h, peer *testnet.Host) {
	t.Helper()
	file := filepath.Join(w.dir, h.Name+".key")
	require.NoError(t, os.WriteFile(file, []byte(base64.StdEncoding.EncodeToString(wireguardKey(t, h).Bytes())), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, err := h.Run(ctx, "wg", "set", upperDevice, "listen-port", "51820", "private-key", file,
		"peer", base64.StdEncoding.EncodeToString(wireguardKey(t, peer).PublicKey().Bytes()),
		"endpoint", peer.AddrPort4(51820).String(), "allowed-ips", "0.0.0.0/0,::/0")
	require.NoError(t, err, out)
}

// wireguardKey returns the key of a host.
func wireguardKey(t *testing.T, h *testnet.Host) *ecdh.PrivateKey {
	t.Helper()
	secret := sha256.Sum256([]byte(h.Name))
	key, err := ecdh.X25519().NewPrivateKey(secret[:])
	require.NoError(t, err)
	return key
}
