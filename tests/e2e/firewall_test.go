package e2e

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// strictFirewall lets only one source on h1 reach one port, and nothing else in.
const strictFirewall = `table inet filter {
	chain input {
		type filter hook input priority 0; policy drop;
		iif lo accept
		ct state established,related accept
		icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
		udp dport 4791 accept
		iifname "eth0" ip saddr 10.77.0.1 tcp dport 7000 accept
		iifname "eth0" ip6 saddr fd77::1 tcp dport 7000 accept
	}
}`

// TestFirewallDecidesTheSame checks that a server's default-drop firewall that allows one source and port decides the
// same with and without smcgw, and that no byte and no accept() reaches an application that it refuses.
func TestFirewallDecidesTheSame(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	require.NoError(t, w.h1.AddAddress(netip.MustParsePrefix("10.77.0.101/24")))
	require.NoError(t, w.h1.AddAddress(netip.MustParsePrefix("fd77::101/64")))
	require.NoError(t, w.h2.NFT(onSoftPort(strictFirewall)))
	server := w.serve(w.h2)
	g1, g2 := w.upBoth(settings{})

	for _, on := range []bool{false, true} {
		verb := map[bool]string{false: "off", true: "on"}[on]
		for _, g := range []*gw{g1, g2} {
			g.says(verb)
		}
		families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
			good, bad := "10.77.0.1:0", "10.77.0.101:0"
			if addr(w.h2, echoPort)[0] == '[' {
				good, bad = "[fd77::1]:0", "[fd77::101]:0"
			}
			ping := []string{"ping", "-count", "5", "-bind", good, "-to", addr(w.h2, echoPort)}
			if on {
				w.carriedApp(t, w.h1, ping...)
			} else {
				w.mustApp(w.h1, ping...)
			}
			for _, refused := range [][2]string{{bad, addr(w.h2, echoPort)}, {good, addr(w.h2, firstPort)}} {
				e, err := w.app(w.h1, 20*time.Second, "connect", "-timeout", "1500ms", "-bind", refused[0], "-to", refused[1])
				require.NoError(t, err)
				require.Equal(t, 1, e.Failed, "%s: %v must be dropped: %+v", verb, refused, e)
				require.Equal(t, "GAVE_UP", e.Errno, "%s: %v: dropped, not refused: %+v", verb, refused, e)
			}
		})
	}
	letIn := []netip.Addr{netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("fd77::1")}
	for _, e := range server.Events() {
		if e.Event == "accepted" {
			require.Equal(t, "echo", e.Mode, "an application was reached that the firewall refuses: %+v", e)
			from, err := netip.ParseAddrPort(e.Remote)
			require.NoError(t, err, "%+v", e)
			require.Contains(t, letIn, from.Addr(), "a source was let in that the firewall refuses: %+v", e)
		}
	}
}
