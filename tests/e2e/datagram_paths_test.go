package e2e

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// TestDatagramsTranslatedNative checks that what TestDatagramsTranslated demands holds without any gateway.
func TestDatagramsTranslatedNative(t *testing.T) { datagramsTranslated(t, newDatagrams(t, true)) }

// datagramsTranslated checks that programs reach the servers that they reach natively where addresses are translated,
// on the client's host, on the server's or between them.
func datagramsTranslated(t *testing.T, d *datagrams) {
	client, err := d.net.Behind(d.h1, "client")
	require.NoError(t, err)
	inner, err := d.net.Behind(d.h2, "inner")
	require.NoError(t, err)
	behind := d.serveNumbered(inner)
	ports := uint16(9300)
	// reaches sends from a port of its own and returns what the server saw.
	reaches := func(t *testing.T, from *testnet.Host, bind netip.Addr, to string, server *testnet.Proc, as netip.Addr) apps.Event {
		t.Helper()
		ports++
		for _, connected := range []string{"-connected=true", "-connected=false"} {
			e := d.ping(t, from, to, "-count", "20", "-bind", netip.AddrPortFrom(bind, ports).String(), connected, "-size", "0,24,1400")
			require.Equal(t, to, e.Remote)
		}
		return seen(t, server, netip.AddrPortFrom(as, ports).String())
	}
	own := func(addr func(*testnet.Host, uint16) string, h *testnet.Host) netip.Addr { return hostOf(addr(h, 1)) }

	t.Run("output", func(t *testing.T) { // the client's host sends what is for h3 to h2
		translate(t, d.h1, `output { type nat hook output priority -100; `,
			fmt.Sprintf("ip daddr 10.77.0.3 udp dport %d dnat to 10.77.0.2:%d", deadUDP, echoUDP),
			fmt.Sprintf("ip6 daddr fd77::3 udp dport %d dnat to [fd77::2]:%d", deadUDP, echoUDP))
		families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
			e := reaches(t, d.h1, own(addr, d.h1), addr(d.h3, deadUDP), d.server, own(addr, d.h1))
			require.Equal(t, addr(d.h2, echoUDP), e.Local)
		})
	})
	t.Run("prerouting", func(t *testing.T) { // the server's host redirects a port
		translate(t, d.h2, `pre { type nat hook prerouting priority -100; `, fmt.Sprintf("udp dport %d redirect to :%d", deadUDP, echoUDP))
		families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
			e := reaches(t, d.h1, own(addr, d.h1), addr(d.h2, deadUDP), d.server, own(addr, d.h1))
			require.Equal(t, own(addr, d.h2), hostOf(e.Local))
		})
	})
	t.Run("forwarded", func(t *testing.T) { // the server's host forwards to a machine behind it
		translate(t, d.h2, `pre { type nat hook prerouting priority -100; `,
			fmt.Sprintf("ip daddr 10.77.0.2 udp dport %d dnat to %s:%d", deadUDP, inner.Addr4, echoUDP),
			fmt.Sprintf("ip6 daddr fd77::2 udp dport %d dnat to [%s]:%d", deadUDP, inner.Addr6, echoUDP))
		families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
			e := reaches(t, d.h1, own(addr, d.h1), addr(d.h2, deadUDP), behind, own(addr, d.h1))
			require.Equal(t, addr(inner, echoUDP), e.Local)
		})
	})
	t.Run("masquerade", func(t *testing.T) { // a machine behind the client's host
		translate(t, d.h1, `post { type nat hook postrouting priority 100; `, `oifname "eth0" masquerade`)
		families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
			reaches(t, client, own(addr, client), addr(d.h2, echoUDP), d.server, own(addr, d.h1))
		})
	})
	t.Run("postrouting", func(t *testing.T) { // the client's host changes the source
		require.NoError(t, d.h1.AddAddress(prefix("10.77.0.91/24")))
		require.NoError(t, d.h1.AddAddress(prefix("fd77::91/64")))
		translate(t, d.h1, `post { type nat hook postrouting priority 100; `,
			fmt.Sprintf("ip saddr 10.77.0.1 udp dport %d snat to 10.77.0.91", echoUDP),
			fmt.Sprintf("ip6 saddr fd77::1 udp dport %d snat to fd77::91", echoUDP))
		families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
			as := netip.MustParseAddr("10.77.0.91")
			if v6(addr(d.h1, 1)) {
				as = netip.MustParseAddr("fd77::91")
			}
			reaches(t, d.h1, own(addr, d.h1), addr(d.h2, echoUDP), d.server, as)
		})
	})
}
