package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/lab/apps"
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

// TestAuto: native connections are looked at first. Small requests, short connections
// and many at once are left native for what they show, and looked at again later; bulk
// is sampled when that is a small part of what it has done, and carried.
func TestAuto(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	w.congestion(t, "reno")
	w.serve(w.h2)
	w.listen(w.h2, "transfer", burstPort)
	w.listen(w.h2, "echo", redisPort)
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
	before := g.status().FlowsTotal[w.via]
	for i := range 2 { // the second time the service is looked at again
		for range 2 {
			g.tells(t, from(w.mustApp(w.h1, ping...)), local("not_worth_it"), false)
		}
		s := g.verdict(to, admin.VerdictNative)
		require.Equal(t, "not_worth_it", s.Reason)
		require.Contains(t, s.Why, "native connections; carrying them cannot pay")
		require.Greater(t, s.ExpiresSeconds, float64(2*i), "twice as long")
		require.GreaterOrEqual(t, s.Native, uint64(2*(i+1)))
		require.Eventually(t, func() bool { return g.service(to).ExpiresSeconds == 0 }, 30*time.Second, 50*time.Millisecond)
	}
	require.Equal(t, before, g.status().FlowsTotal[w.via], "none was carried")
}

// autoBulk: on a path whose time TCP waits for, carried bulk wins against native. The
// gateways know each other by another service, so that they know what a sample may cost.
func autoBulk(t *testing.T, w *world, g *gw, to string) {
	w.carriedBy(w.mustApp(w.h1, "ping", "-to", netip.AddrPortFrom(hostOf(to), redisPort).String()), w.via)
	w.box(t, testnet.Box{Delay: 20 * time.Millisecond})
	carried := g.status().FlowsTotal[w.via]
	var s admin.ServiceInfo
	for try := 0; s.Verdict != admin.VerdictCarry; try++ {
		require.Less(t, try, 20, "%+v", s)
		w.mustApp(w.h1, "churn", "-count", "40", "-parallel", "20", "-size", fmt.Sprint(24<<20), "-to", to)
		s = g.service(to)
		t.Logf("%s: %s, %d carried", s.Verdict, s.Why, g.status().FlowsTotal[w.via]-carried)
	}
	require.GreaterOrEqual(t, s.Score, 1.0)
	require.Empty(t, s.Reason)
	require.NotNil(t, s.Compared)
	require.Greater(t, s.Compared.CarriedBytesPerSecond, s.Compared.NativeBytesPerSecond)
	require.GreaterOrEqual(t, s.Native, uint64(50), "samples were few")
}

func autoBurst(t *testing.T, w *world, g *gw, to string) {
	before := g.status()
	e := w.mustApp(w.h1, "churn", "-count", "50", "-parallel", "50", "-size", "4096", "-to", to)
	require.Equal(t, 50, e.OK)
	require.Equal(t, before.FlowsTotal[w.via], g.status().FlowsTotal[w.via])
	require.Eventually(t, func() bool {
		return g.status().FallbacksTotal["not_worth_it"]-before.FallbacksTotal["not_worth_it"] == 50
	}, 30*time.Second, 20*time.Millisecond)
	g.verdict(to, admin.VerdictNative)
	out, err := g.cli("peers", "--services")
	require.NoError(t, err)
	require.Contains(t, out, "not_worth_it")
	t.Logf("\n%s", out)
}

// congestion makes name the default congestion control of all hosts.
func (w *world) congestion(t *testing.T, name string) {
	t.Helper()
	for _, h := range w.net.Hosts() {
		if err := h.SetSysctl("net.ipv4.tcp_congestion_control", name); err != nil {
			testnet.Lack(t, "kernel", err)
		}
	}
}

// congestionOf is what ss shows of the congestion control of a host's end of a
// connection.
func (w *world) congestionOf(t *testing.T, h *testnet.Host, local, remote netip.AddrPort) string {
	t.Helper()
	out, err := h.Run(t.Context(), "ss", "-tinH", "state", "established")
	require.NoError(t, err)
	found := false
	for line := range strings.Lines(strings.ReplaceAll(out, "[::ffff:", "[")) {
		f := strings.Fields(line)
		if found {
			return f[0]
		}
		found = len(f) >= 4 && unbracket(f[2]) == local && unbracket(f[3]) == remote
	}
	require.Fail(t, "no such connection", "%v to %v:\n%s", local, remote, out)
	return ""
}

// TestAutoWithinAKernel: where hosts pace and both are under one kernel, connections that
// auto leaves native do not pace, at both ends, for a reason of their own; without a
// gateway sockets have what the host gives them.
func TestAutoWithinAKernel(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	if w.via != config.CarrierShm {
		t.Skip("SKIPPED: only shared memory shows that hosts are under one kernel")
	}
	const paced = "bbr"
	w.congestion(t, paced)
	w.serve(w.h2)
	w.listen(w.h2, "echo", redisPort)
	g1, g2 := w.up(w.h1, autoSettings()), w.up(w.h2, autoSettings())
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		to := addr(w.h2, echoPort)
		w.sockets(t, to, true, true, local("not_worth_it"), nothing) // the hosts have not met
		w.carriedBy(w.mustApp(w.h1, "ping", "-to", addr(w.h2, redisPort)), w.via)
		w.sockets(t, to, false, false, local("same_kernel"), local("same_kernel"))
	})
	to := w.h2.Addr4.String() + fmt.Sprintf(":%d", echoPort)
	s := g1.service(to)
	require.Zero(t, s.Connections)
	for range 2 {
		w.mustApp(w.h1, "ping", "-count", "100", "-to", to)
	}
	require.Equal(t, "same_kernel", g1.verdict(to, admin.VerdictNative).Reason)
	out, err := g1.cli("conns", "--native")
	require.NoError(t, err)
	require.Contains(t, out, "same_kernel")
	require.Eventually(t, func() bool {
		return g1.status().FallbacksTotal["same_kernel"] >= 4 && g2.status().FallbacksTotal["same_kernel"] >= 4
	}, 30*time.Second, 20*time.Millisecond)

	w.sockets(t, w.h2.Addr4.String()+fmt.Sprintf(":%d", plainPort), true, true, local("policy"), nothing)
	_, err = g1.cli("off")
	require.NoError(t, err)
	w.sockets(t, to, true, false, local("off"), local("same_kernel"))
	w.down(w.h1)
	w.sockets(t, to, true, false, nothing, local("same_kernel"))
	w.down(w.h2)
	w.sockets(t, to, true, true, nothing, nothing)
}

// sockets makes a connection from the first host to the second, and checks which of its
// sockets pace, and what the gateways tell of it that there are.
func (w *world) sockets(t *testing.T, to string, client, server bool, first, second told) {
	t.Helper()
	want := [2]bool{client, server}
	var p *testnet.Proc
	var e apps.Event
	for try := 0; ; try++ { // one that comes up late keeps what it has
		p, e = w.hold(t, w.h1, to)
		ends := [2]netip.AddrPort{netip.MustParseAddrPort(e.Local), netip.MustParseAddrPort(e.Remote)}
		got := [2]bool{w.congestionOf(t, w.h1, ends[0], ends[1]) == "bbr", w.congestionOf(t, w.h2, ends[1], ends[0]) == "bbr"}
		if got == want {
			break
		}
		require.True(t, try < 5 && (got[0] || !want[0]) && (got[1] || !want[1]), "paces: %v instead of %v", got, want)
		require.NoError(t, p.CloseInput())
		require.NoError(t, p.Wait())
	}
	if g := w.gateways[w.h1]; g != nil {
		g.tells(t, from(e), first, false)
	}
	if g := w.gateways[w.h2]; g != nil {
		g.tells(t, at(e), second, false)
	}
	require.NoError(t, p.CloseInput())
	require.NoError(t, p.Wait())
}
