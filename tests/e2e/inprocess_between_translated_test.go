package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// translatedWorld is two hosts that promote between each other, each with a container behind it.
type translatedWorld struct {
	*betweenWorld
	server, client *testnet.Host // containers of h1, and of h2
	paths          []translatedPath
	proxied        translatedPath // two connections, as through an engine's userland proxy
}

// translatedPath is how the addresses of a connection from a program of h2, or in its container, to one of h1, or in
// its container, are translated.
type translatedPath struct {
	name     string
	from, to *testnet.Host
	listens  int            // port of the server
	dials    netip.AddrPort // what the client connects to
	saw      netip.Addr     // the client's address, as the server sees it
}

// serviceAddress is an address that no host has.
var serviceAddress = netip.MustParseAddr("10.96.0.1")

func newTranslatedWorld(t *testing.T) *translatedWorld {
	t.Helper()
	w := &translatedWorld{}
	var ports []string
	for i := range 100 {
		ports = append(ports, fmt.Sprint(7100+i))
	}
	w.betweenWorld = newBetweenWorld(t, settings{
		Carriers: "soft",
		Policy:   "  - { name: translated, match: { ports: [" + strings.Join(ports, ", ") + "] }, action: accelerate, way: in-process }\n",
	})
	var err error
	w.server, err = w.net.Behind(w.h1, "server")
	require.NoError(t, err)
	w.client, err = w.net.Behind(w.h2, "client")
	require.NoError(t, err)
	w.within = map[*testnet.Host]*testnet.Host{w.server: w.h1, w.client: w.h2}
	alias := netip.MustParseAddr("10.77.0.102")
	require.NoError(t, w.h2.AddAddress(netip.PrefixFrom(alias, 24)))
	h1, h2 := w.h1.Addr4, w.h2.Addr4
	require.NoError(t, w.h1.NFT(fmt.Sprintf(`table ip nat {
	chain pre {
		type nat hook prerouting priority dstnat;
		ip daddr %[1]s tcp dport 7150 dnat to %[2]s:7100
		ip daddr %[1]s tcp dport 7152 dnat to %[2]s:7102
		tcp dport 7160 redirect to :7100
	}
}
`, h1, w.server.Addr4)))
	require.NoError(t, w.h2.NFT(fmt.Sprintf(`table ip nat {
	chain post {
		type nat hook postrouting priority srcnat;
		ip saddr %[1]s oifname "eth0" tcp dport { 7101, 7103, 7152 } masquerade random
		ip saddr %[2]s tcp dport 7111 snat to %[3]s
	}
	chain out {
		type nat hook output priority -100;
		ip daddr %[4]s tcp dport 7112 dnat to %[5]s
		ip daddr %[4]s tcp dport 7115 dnat to %[6]s:7105
	}
	chain pre { type nat hook prerouting priority dstnat; ip daddr %[4]s tcp dport 7103 dnat to %[5]s; }
}
`, w.client.Addr4, h2, alias, serviceAddress, h1, w.server.Addr4)))
	at := netip.AddrPortFrom
	w.paths = []translatedPath{
		{"published", w.h2, w.server, 7100, at(h1, 7150), h2},
		{"redirected", w.h2, w.h1, 7100, at(h1, 7160), h2},
		{"masqueraded", w.client, w.h1, 7101, at(h1, 7101), h2},
		{"containers of both", w.client, w.server, 7102, at(h1, 7152), h2},
		{"other source", w.h2, w.h1, 7111, at(h1, 7111), alias},
		{"service", w.h2, w.h1, 7112, at(serviceAddress, 7112), h2},
		{"containers without translation", w.client, w.server, 7104, at(w.server.Addr4, 7104), w.client.Addr4},
		{"service in a container", w.h2, w.server, 7105, at(serviceAddress, 7115), h2},
		{"service for a container", w.client, w.h1, 7103, at(serviceAddress, 7103), h2},
	}
	w.proxied = translatedPath{"proxied", w.h2, w.server, 7106, at(h1, 7156), w.server.Addr4.Prev()}
	proxy, err := w.h1.StartCmd(w.h1.AppCommand(context.Background(), "forward", "-to", w.server.AddrPort4(7106).String(), w.proxied.dials.String()))
	require.NoError(t, err)
	require.NoError(t, proxy.WaitOutput(patience(t), `"event":"listening"`))
	return w
}

// streams begins a stream on each path, the proxied one last.
func (w *translatedWorld) streams(bytes int) (all []*flow) {
	w.t.Helper()
	for _, p := range append(slices.Clone(w.paths), w.proxied) {
		all = append(all, w.streamTo(p.to, p.listens, p.from, p.dials, bytes))
	}
	return all
}

// TestBetweenHostsTranslated checks that connections whose addresses are translated on either host, and those of
// containers on both, are in process between the hosts, and that every end is reported with the addresses that its
// program has natively. What a proxy joins must be native.
func TestBetweenHostsTranslated(t *testing.T) {
	t.Parallel()
	w := newTranslatedWorld(t)
	w.library = false
	const few = 1 << 20
	all := append(slices.Clone(w.paths), w.proxied)
	for i, f := range w.streams(few) {
		f.whole(few)
		require.Equal(t, all[i].saw, f.saw().Addr(), "%s, natively", all[i].name)
		f.kill()
	}
	w.library = true
	flows := w.streams(endless)
	for i, p := range w.paths {
		f := flows[i]
		clients := w.end(w.gs[1], p.name, func(c report.ConnInfo) bool {
			return c.Local.Addr() == p.from.Addr4 && c.Remote == p.dials
		})
		servers := w.end(w.gs[0], p.name, func(c report.ConnInfo) bool { return c.Local.Port() == uint16(p.listens) && c.Remote == f.saw() })
		require.Equal(t, p.saw, servers.Remote.Addr(), p.name)
		require.Equal(t, p.to.Addr4, servers.Local.Addr(), p.name)
		require.Equal(t, [2]report.Side{report.SideClient, report.SideServer}, [2]report.Side{clients.Side, servers.Side}, p.name)
		f.ends()
	}
	for _, g := range w.gs {
		g.eventually("looked for the peers that a proxy has", 3*slack, func() bool { return g.status().InProcess.Waiting == 1 })
		require.EqualValues(t, len(w.paths), g.status().InProcess.ConnectionsTotal)
	}
	flows[len(w.paths)].ends()
}

// end waits until an end is in rings over the soft device and bytes have moved there.
func (w *translatedWorld) end(g *gw, name string, is func(report.ConnInfo) bool) (end report.ConnInfo) {
	w.t.Helper()
	g.eventually(name+": promoted", 3*slack, func() bool {
		list := g.inProcess()
		i := slices.IndexFunc(list, func(c report.ConnInfo) bool { return is(c) && c.InProcess.TxRing > 0 && c.InProcess.RxRing > 0 })
		if i >= 0 {
			end = list[i]
		}
		return i >= 0
	})
	require.Equal(w.t, report.CarrierSoft, end.Carrier, name)
	return end
}
