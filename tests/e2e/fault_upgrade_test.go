package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// launchSuccessor starts a process of this tree that takes over from a gateway, with some environment, and does not
// wait for it. It logs to a file, since a daemon may outlive its guardian.
func (g *gw) launchSuccessor(env []string, args ...string) *gw {
	w := g.w
	w.t.Helper()
	next := &gw{w: w, h: g.h, socket: filepath.Join(w.dir, g.h.Name+".sock"), config: g.config}
	next.detached(env, append([]string{"--takeover"}, args...)...)
	return next
}

// logged waits until a gateway with a log file has written a text.
func (g *gw) logged(text string) {
	g.w.t.Helper()
	require.Eventually(g.w.t, func() bool { return g.hasLogged(text) }, 30*time.Second, 5*time.Millisecond, "%q", text)
}

func (g *gw) hasLogged(text string) bool {
	b, err := os.ReadFile(g.log)
	return err == nil && regexp.MustCompile(regexp.QuoteMeta(text)).Match(b)
}

// upgrade makes another process take over from g, which is found beside it from then on.
func (g *gw) upgrade() *gw {
	g.w.t.Helper()
	next := g.launchSuccessor(nil)
	next.logged("gateway is up")
	g.socket += ".old"
	g.w.gateways[g.h] = next
	return next
}

// oneGateway reduces a footprint to what does not depend on the generation.
func (f footprint) oneGateway() footprint {
	number := regexp.MustCompile(`smcgw-([awh])\d|\b(?:479\d|10\d)\b|\(\d+\)|id \d+|ifindex \d+`)
	for _, list := range []*[]string{&f.links, &f.rules, &f.routes, &f.programs} {
		*list = slices.Clone(*list)
		for i, s := range *list {
			(*list)[i] = number.ReplaceAllString(s, "$1")
		}
		slices.Sort(*list)
	}
	return f
}

// ended waits for the end of a gateway and all of its processes.
func (g *gw) ended(t *testing.T) {
	t.Helper()
	select {
	case <-g.proc.Done():
	case <-time.After(30 * time.Second):
		st, _ := g.cli("status")
		conns, _ := g.cli("conns")
		t.Fatalf("the old gateway goes on\n%s\n%s", st, conns)
	}
	require.NoError(t, g.proc.Wait(), "it ends in order")
}

// files returns the files below the test's directory that are not logs.
func (w *world) files() (names []string) {
	_ = filepath.Walk(w.dir, func(path string, fi os.FileInfo, err error) error {
		if err == nil && !fi.IsDir() && filepath.Ext(path) != ".log" {
			names = append(names, path)
		}
		return nil
	})
	return names
}

// TestFaultUpgrade replaces gateways while connections are carried, idle, busy and in bulk, and while others begin
// and end by the hundred. No application may notice, every byte must be right, later connections must be the new
// gateway's, and the old one must end without a trace when its last connection has ended. Over soft the new gateway
// needs the UDP port of the old one, whose connections go on over the relay. Each run draws the carrier and the
// hosts.
func TestFaultUpgrade(t *testing.T) {
	for _, via := range matrix.Cells(t, []report.Carrier{report.CarrierShm, report.CarrierSoft}, 1) {
		t.Run(string(via), func(t *testing.T) {
			rounds := [][]string{{"h1"}, {"h2"}}
			if via == report.CarrierShm {
				rounds = append(rounds, []string{"h1", "h2"})
			}
			count := newTally(t)
			w := newServed(t)
			w.via = via
			w.upBoth(settings{})
			alone := map[*testnet.Host]footprint{w.h1: w.footprint(w.h1).oneGateway(), w.h2: w.footprint(w.h2).oneGateway()}
			for _, names := range matrix.Cells(t, rounds, 1) {
				var hosts []*testnet.Host
				for _, n := range names {
					hosts = append(hosts, w.net.Host(n))
				}
				upgradeUnder(t, w, count, alone, hosts)
			}
			require.Zero(t, count.failed())
		})
	}
}

func upgradeUnder(t *testing.T, w *world, count *tally, alone map[*testnet.Host]footprint, hosts []*testnet.Host) {
	start := func(args ...string) *testnet.Proc {
		p, err := w.h1.StartApp(args...)
		require.NoError(t, err)
		return p
	}
	held := start("hold", "-count", "8", "-to", w.h2.AddrPort6(echoPort).String())
	busy := []*testnet.Proc{
		start("ping", "-count", "600", "-gap", "10ms", "-size", "20000", "-to", w.h2.AddrPort4(echoPort).String()),
		start("ping", "-count", "600", "-gap", "10ms", "-size", "64", "-to", w.h2.AddrPort6(echoPort).String()),
	}
	for _, g := range w.gateways {
		require.Eventually(t, func() bool { return g.status().Flows[w.via] >= 10 }, 30*time.Second, 20*time.Millisecond)
	}
	storm := []*testnet.Proc{
		start("transfer", "-up", "400000000", "-down", "400000000", "-to", w.h2.AddrPort4(transferPort).String()),
		start("transfer", "-up", "200000000", "-late", "-to", w.h2.AddrPort6(transferPort).String()),
		start("churn", "-count", "400", "-parallel", "4", "-size", "20000", "-to", w.h2.AddrPort4(transferPort).String()),
		start("churn", "-count", "400", "-parallel", "4", "-size", "20000", "-to", w.h2.AddrPort6(transferPort).String()),
		start("connect", "-count", "400", "-gap", "1ms", "-to", w.h2.AddrPort4(holdPort).String()),
	}
	time.Sleep(100 * time.Millisecond)
	var old []*gw
	for _, h := range hosts {
		g := w.gateways[h]
		next := g.upgrade()
		old = append(old, g)
		count.faults(1)
		require.NotNil(t, next.status().Predecessor, "the status tells of the one that drains")
		flows := g.status().Flows
		require.GreaterOrEqual(t, flows[w.via]+flows[report.CarrierRelay], 8, "which serves what it carried")
	}
	for _, p := range append(storm, busy...) {
		e := result(t, p)
		require.Zero(t, e.Failed, "%+v", e)
		count.result(e)
	}
	for _, g := range w.gateways {
		peers, err := g.client().Peers(t.Context())
		require.NoError(t, err)
		for _, p := range peers.Peers {
			require.NotEqual(t, "device_failed", p.Reason, "%s is remembered for having been replaced: %+v", p.Address, p)
		}
	}
	// The first one with a new gateway finds the offer of shared memory in use by the old one.
	e := w.comesToCarry(w.h2.AddrPort4(echoPort).String(), func() {})
	count.result(e)
	count.result(lastPing(t, held))
	require.NotContains(t, held.Output(), `"errno"`)
	for _, g := range old {
		g.ended(t)
	}
	for h, was := range alone {
		require.Eventually(t, func() bool { return cmpFootprint(was, w.footprint(h).oneGateway()) }, 10*time.Second, 50*time.Millisecond,
			"%s: %+v instead of %+v", h.Name, w.footprint(h).oneGateway(), was)
	}
	for _, name := range w.files() {
		require.NotContains(t, name, ".old")
		require.NotContains(t, name, ".new")
	}
	for _, h := range hosts {
		require.Nil(t, w.gateways[h].status().Predecessor)
	}
	e = w.comesToCarry(w.h2.AddrPort6(echoPort).String(), func() {})
	count.result(e)
}

func cmpFootprint(a, b footprint) bool {
	return slices.Equal(a.links, b.links) && slices.Equal(a.rules, b.rules) && slices.Equal(a.routes, b.routes) && slices.Equal(a.programs, b.programs)
}
