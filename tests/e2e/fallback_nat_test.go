package e2e

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

const translatedPort = 7120 // no listener

// TestFallbackTranslated checks connections whose addresses are translated on the client's host, on the server's or
// between. The application must reach the server that it reaches without gateways, and see the same addresses.
func TestFallbackTranslated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	server := w.serve(w.h2)
	inner, err := w.net.Behind(w.h2, "inner")
	require.NoError(t, err)
	client, err := w.net.Behind(w.h1, "client")
	require.NoError(t, err)
	ports := settings{Ports: fmt.Sprintf("%d, %d", echoPort, translatedPort), Carriers: "shm, soft"}
	w.upBoth(ports)

	// The client's host sends what is for h3 to h2.
	t.Run("output", func(t *testing.T) {
		translate(t, w.h1, `output { type nat hook output priority -100; `,
			fmt.Sprintf("ip daddr 10.77.0.3 tcp dport %d dnat to 10.77.0.2:%d", translatedPort, echoPort),
			fmt.Sprintf("ip6 daddr fd77::3 tcp dport %d dnat to [fd77::2]:%d", translatedPort, echoPort))
		families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
			e := fallback{w: w, t: t, from: w.h1, to: addr(w.h3, translatedPort), client: local("nat")}.ping()
			require.Equal(t, addr(w.h3, translatedPort), e.Remote)
			require.Equal(t, addr(w.h2, echoPort), accepted(t, server, e.Local).Local)
		})
	})

	// The server's host redirects a port without a listener: its gateway leaves it alone until something has answered
	// there.
	t.Run("prerouting", func(t *testing.T) {
		translate(t, w.h2, `pre { type nat hook prerouting priority -100; `,
			fmt.Sprintf("tcp dport %d redirect to :%d", translatedPort, echoPort))
		families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
			e := fallback{w: w, t: t, from: w.h1, to: addr(w.h2, translatedPort), client: remote("peer_no_option")}.ping()
			require.Equal(t, addr(w.h2, echoPort), accepted(t, server, e.Local).Local)
			e = w.carried(t, w.h1, addr(w.h2, translatedPort))
			require.Equal(t, addr(w.h2, echoPort), accepted(t, server, e.Local).Local)
		})
	})

	// The server's host forwards the port to a machine behind it.
	t.Run("forwarded", func(t *testing.T) {
		served := w.listen(inner, "echo", echoPort)
		translate(t, w.h2, `pre { type nat hook prerouting priority -100; `,
			fmt.Sprintf("ip daddr 10.77.0.2 tcp dport %d dnat to %s:%d", translatedPort, inner.Addr4, echoPort),
			fmt.Sprintf("ip6 daddr fd77::2 tcp dport %d dnat to [%s]:%d", translatedPort, inner.Addr6, echoPort))
		families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
			e := w.carried(t, w.h1, addr(w.h2, translatedPort)) // because of what is known of the port
			require.Equal(t, addr(inner, echoPort), accepted(t, served, e.Local).Local)
		})
	})

	// A machine behind the client's host is masqueraded and has a gateway of its own: the gateway of the host in
	// front forwards no offers.
	t.Run("masquerade", func(t *testing.T) {
		w.up(client, ports)
		defer w.down(client)
		translate(t, w.h1, `post { type nat hook postrouting priority 100; `, `oifname "eth0" masquerade`)
		families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
			before, e := w.pingInTime(t, client, addr(w.h2, echoPort))
			mine := netip.MustParseAddrPort(e.Local)
			accepted(t, server, addr(w.h1, mine.Port()))
			w.told(t, client, from(e), before, remote("peer_no_option"))
			e.Local = addr(w.h1, mine.Port()) // as it leaves h1
			w.told(t, w.h1, from(e), before, local("forwarded"))
			w.told(t, w.h2, at(e), before, nothing)
		})
	})

	// A machine is masqueraded by a router without a gateway: the offer arrives, but the queue pairs have addresses
	// that mean nothing on the other side.
	t.Run("router", func(t *testing.T) {
		w.down(w.h1)
		alone := ports
		alone.Carriers = "soft"
		w.up(client, alone)
		defer w.up(w.h1, ports)
		defer w.down(client)
		translate(t, w.h1, `post { type nat hook postrouting priority 100; `, `oifname "eth0" masquerade`)
		families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
			before, e := w.pingInTime(t, client, addr(w.h2, echoPort))
			mine := netip.MustParseAddrPort(e.Local)
			accepted(t, server, addr(w.h1, mine.Port()))
			w.told(t, client, from(e), before, remote("nat"))
			e.Local = addr(w.h1, mine.Port())
			w.told(t, w.h2, at(e), before, local("nat"))
		})
	})

	// The client's host changes the source.
	t.Run("postrouting", func(t *testing.T) {
		require.NoError(t, w.h1.AddAddress(prefix("10.77.0.91/24")))
		require.NoError(t, w.h1.AddAddress(prefix("fd77::91/64")))
		translate(t, w.h1, `post { type nat hook postrouting priority 100; `,
			fmt.Sprintf("ip saddr 10.77.0.1 tcp dport %d snat to 10.77.0.91", echoPort),
			fmt.Sprintf("ip6 saddr fd77::1 tcp dport %d snat to fd77::91", echoPort))
		families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
			e := fallback{
				w: w, t: t, from: w.h1, to: addr(w.h2, echoPort), args: []string{"-bind", addr(w.h1, 0)}, client: local("nat"),
			}.ping()
			mine := netip.MustParseAddrPort(e.Local)
			require.Equal(t, addr(w.h1, mine.Port()), e.Local)
			seen := "10.77.0.91"
			if mine.Addr().Is6() {
				seen = "fd77::91"
			}
			accepted(t, server, netip.AddrPortFrom(netip.MustParseAddr(seen), mine.Port()).String())
		})
	})
}

// pingInTime makes a connection, again if it finds a gateway late, and returns what was counted before it.
func (w *world) pingInTime(t *testing.T, from *testnet.Host, to string) (before map[*testnet.Host]report.Status, e apps.Event) {
	t.Helper()
	w.inTime(func() bool {
		before = w.totals()
		return w.noneLate(func() { e = w.mustApp(from, "ping", "-to", to) })
	})
	return before, e
}

// told checks what one host's gateway reports about a connection.
func (w *world) told(t *testing.T, h *testnet.Host, match func(report.ConnInfo) bool, before map[*testnet.Host]report.Status, want told) {
	t.Helper()
	w.gateways[h].tells(t, match, want, false)
	w.gateways[h].counted(t, before[h], want, false)
}

// translate adds nat rules to a host until the end of the test.
func translate(t *testing.T, h *testnet.Host, chain string, rules ...string) {
	t.Helper()
	text := "table inet nat {\nchain " + chain + "\n"
	for _, r := range rules {
		text += r + "\n"
	}
	require.NoError(t, h.NFT(text+"}\n}"))
	t.Cleanup(func() { require.NoError(t, h.FlushNFT()) })
}
