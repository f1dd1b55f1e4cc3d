package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// TestCombination checks the basic combination: the app's socket, the gateway's socket and the adopted wire leg on
// one 4-tuple, two TUNs, both families, and a server behind a firewall that drops by default.
func TestCombination(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	require.NoError(t, w.h2.NFT(onSoftPort(`table inet filter {
	chain input {
		type filter hook input priority 0; policy drop;
		iif lo accept
		ct state established,related accept
		icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
		udp dport 4791 accept
		iifname "eth0" ip saddr 10.77.0.1 tcp dport { 7000-7006 } accept
		iifname "eth0" ip6 saddr fd77::1 tcp dport { 7000-7006 } accept
	}
}`)))
	w.serve(w.h2)
	w.upBoth(settings{})
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		// On a lossy network the first proof may take too long.
		w.carriedApp(t, w.h1, "ping", "-count", "50", "-to", addr(w.h2, echoPort))
		w.carriedApp(t, w.h1, "transfer", "-up", "20000000", "-down", "20000000", "-to", addr(w.h2, transferPort))
	})
}
