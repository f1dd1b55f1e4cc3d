package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// TestAuto checks that a rule with action auto leaves every connection native on hosts without an adapter: no SYN
// carries an offer, and both ends report why. A server that carries what its own rule selects is not asked.
func TestAuto(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.listen(w.h2, "echo", redisPort)
	auto := settings{Policy: fmt.Sprintf("\n  - { name: auto, match: { ports: [%d, %d] }, action: auto }\n", echoPort, transferPort)}
	g1, g2 := w.up(w.h1, auto), w.up(w.h2, settings{})
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		before := g1.status().FallbacksTotal["not_worth_it"]
		g1.tells(t, from(w.mustApp(w.h1, "ping", "-count", "100", "-size", "40", "-to", addr(w.h2, echoPort))), local("not_worth_it"), false)
		g1.tells(t, from(w.mustApp(w.h1, "transfer", "-up", "16777216", "-down", "1000", "-to", addr(w.h2, transferPort))), local("not_worth_it"), false)
		require.EqualValues(t, before+2, g1.status().FallbacksTotal["not_worth_it"])
		require.Zero(t, g1.metrics(t)["smcgw_ebpf_offered_total"])
		w.carried(t, w.h1, addr(w.h2, redisPort)) // by another rule
	})
	require.Zero(t, g2.status().FallbacksTotal["not_worth_it"])
}

// TestAutoServes checks that a server with an auto rule, on a host without an adapter, passes a client's offering SYN
// to its kernel, so that the connection is native.
func TestAutoServes(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	auto := settings{Policy: fmt.Sprintf("\n  - { name: auto, match: { ports: [%d] }, action: auto }\n", echoPort)}
	w.up(w.h1, settings{})
	w.up(w.h2, auto)
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		fallback{w: w, t: t, from: w.h1, to: addr(w.h2, echoPort), client: remote("peer_no_option"), server: local("not_worth_it")}.ping()
	})
}

// TestAutoInProcess checks that a rule with action auto promotes programs with the library on one host.
func TestAutoInProcess(t *testing.T) {
	t.Parallel()
	w := newInProcessWorld(t, settings{
		Ports: fmt.Sprint(deadPort), Policy: fmt.Sprintf("\n  - { name: auto, match: { ports: [%d] }, action: auto }\n", transferPort),
	})
	f := w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
	w.g.promoted()
	f.goesOn(5 * time.Second)
}
