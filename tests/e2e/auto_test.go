package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/lab/testnet"
)

const burstPort = 7110

// autoSettings are those of hosts on which action auto selects the test servers.
func autoSettings() settings {
	return settings{
		// Starting 50 at once takes two cores longer than the default allows.
		Handshake: "2s", NegativeCache: "3s",
		Policy: fmt.Sprintf("\n  - { name: auto, match: { ports: [%d, %d, %d] }, action: auto }\n", echoPort, transferPort, burstPort),
	}
}

func (g *gw) service(to string) (found admin.ServiceInfo) {
	g.w.t.Helper()
	var l admin.ServiceList
	g.cliJSON(&l, "peers", "--services")
	for _, s := range l.Services {
		if fmt.Sprintf("%s:%d", s.Address, s.Port) == to || fmt.Sprintf("[%s]:%d", s.Address, s.Port) == to {
			found = s
		}
	}
	return found
}

// verdict waits for what the gateway thinks of a service: ends of connections
// reach it a moment after the applications.
func (g *gw) verdict(to string, want admin.ServiceVerdict) (s admin.ServiceInfo) {
	g.w.t.Helper()
	require.Eventually(g.w.t, func() bool {
		s = g.service(to)
		return s.Verdict == want
	}, time.Minute, 20*time.Millisecond, "%s is not %s", to, want)
	return s
}

// TestAuto: small requests and short connections are left native after the
// samples and sampled again later, bulk is carried, and of many connections at
// once to an unknown service only the samples are.
func TestAuto(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	w.serve(w.h2)
	w.listen(w.h2, "transfer", burstPort)
	g1, _ := w.up(w.h1, autoSettings()), w.up(w.h2, autoSettings())
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		t.Run("requests", func(t *testing.T) { autoRequests(t, w, g1, addr(w.h2, echoPort)) })
		if w.via == config.CarrierShm { // soft has the same path
			t.Run("bulk", func(t *testing.T) { autoBulk(t, w, g1, addr(w.h2, transferPort)) })
		}
		t.Run("burst", func(t *testing.T) { autoBurst(t, w, g1, addr(w.h2, burstPort)) })
	})
}

func autoRequests(t *testing.T, w *world, g *gw, to string) {
	require.Zero(t, g.service(to))
	ping := []string{"ping", "-count", "1000", "-size", "40", "-to", to}
	for i := range 2 { // the second time the service is sampled again
		w.carriedBy(w.mustApp(w.h1, ping...), w.via)
		s := g.verdict(to, admin.VerdictNative)
		require.Equal(t, "not_worth_it", s.Reason)
		require.Less(t, s.Score, 0.1)
		require.InDelta(t, 40, s.BytesPerMove, 30)
		require.NotEmpty(t, s.Why)
		require.Greater(t, s.ExpiresSeconds, float64(2*i), "twice as long")
		e := w.mustApp(w.h1, ping...)
		if g.service(to).ExpiresSeconds > 0 { // the machine was fast enough
			g.tells(t, from(e), local("not_worth_it"), false)
			require.Positive(t, g.service(to).Native)
		}
		require.Eventually(t, func() bool { return g.service(to).ExpiresSeconds == 0 }, 30*time.Second, 50*time.Millisecond)
	}
}

// autoBulk: on a path whose time TCP waits for, carried bulk wins against native.
func autoBulk(t *testing.T, w *world, g *gw, to string) {
	w.box(t, testnet.Box{Delay: 40 * time.Millisecond})
	send := func() {
		w.mustApp(w.h1, "transfer", "-write", "1048576", "-up", fmt.Sprint(96<<20), "-down", "0", "-to", to)
	}
	before := g.status().FlowsTotal[w.via]
	send()
	s := g.verdict(to, admin.VerdictCarry)
	require.GreaterOrEqual(t, s.Score, 1.0)
	require.Empty(t, s.Reason)
	require.EqualValues(t, 1, g.status().FlowsTotal[w.via]-before)
	for range 2 { // native, to compare with
		send()
	}
	require.EqualValues(t, 1, g.status().FlowsTotal[w.via]-before)
	require.Eventually(t, func() bool { s = g.service(to); return s.Compared != nil }, 10*time.Second, 20*time.Millisecond)
	require.Equal(t, admin.VerdictCarry, s.Verdict, "%+v", s.Compared)
	require.Greater(t, s.Compared.CarriedBytesPerSecond, s.Compared.NativeBytesPerSecond)
	send()
	require.EqualValues(t, 2, g.status().FlowsTotal[w.via]-before)
}

func autoBurst(t *testing.T, w *world, g *gw, to string) {
	before := g.status()
	e := w.mustApp(w.h1, "churn", "-count", "50", "-parallel", "50", "-size", "4096", "-to", to)
	require.Equal(t, 50, e.OK)
	now := g.status()
	require.EqualValues(t, 2, now.FlowsTotal[w.via]-before.FlowsTotal[w.via])
	require.Eventually(t, func() bool {
		return g.status().FallbacksTotal["not_worth_it"]-before.FallbacksTotal["not_worth_it"] == 48
	}, 30*time.Second, 20*time.Millisecond)
	g.verdict(to, admin.VerdictNative)
	out, err := g.cli("peers", "--services")
	require.NoError(t, err)
	require.Contains(t, out, "not_worth_it")
	t.Logf("\n%s", out)
}
