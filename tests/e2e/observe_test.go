package e2e

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// rewrite replaces the gateway's configuration file.
func (g *gw) rewrite(s settings) {
	g.w.t.Helper()
	g.w.write(g, s)
}

// turn reloads the gateway in another mode, which is in force once the verb ends.
func (g *gw) turn(s settings, mode report.Mode) {
	g.w.t.Helper()
	s.Mode = string(mode)
	g.rewrite(s)
	out, err := g.cli("reload")
	require.NoError(g.w.t, err, "%s", out)
	require.Equal(g.w.t, mode, g.status().Mode)
}

// touched returns what a gateway that carries nothing must leave unchanged.
func (w *world) touched(h *testnet.Host) residue {
	w.t.Helper()
	r := w.residue(h)
	own := h.Name + ".s" // matches the admin socket and the state directory
	for _, f := range r.files {
		require.True(w.t, strings.HasPrefix(f, own) || f == filepath.Base(w.inProcess(h)), "%s", f)
	}
	r.files, r.rendezvous = nil, 0
	return r
}

// ruleset returns the host's netfilter rules.
func (w *world) ruleset(h *testnet.Host) string {
	w.t.Helper()
	out, err := h.Run(w.t.Context(), "nft", "list", "ruleset")
	require.NoError(w.t, err)
	return out
}

// TestObserveTouchesNothing checks that in the modes observe and off a host has the same devices, rules, routes,
// settings, sockets, netfilter rules and programs as without the gateway, except for the three programs that count in
// observe. A reload must set up all that carrying needs, and later remove it when the last carried connection has
// ended, undisturbed.
func TestObserveTouchesNothing(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	s := settings{Carriers: strings.TrimPrefix(string(w.via), "rdma-")}
	w.bare(w.h1)
	w.bare(w.h2)
	before := map[*testnet.Host]residue{w.h1: w.touched(w.h1), w.h2: w.touched(w.h2)}
	rules := w.ruleset(w.h1)
	untouched := func(g *gw, links int) {
		t.Helper()
		var now residue
		for end := time.Now().Add(slowed(30 * time.Second)); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			now = w.touched(g.h)
			if len(kernelObjects(t, g.daemon())["link"]) == links && reflect.DeepEqual(now, before[g.h]) {
				break
			}
		}
		require.Equal(t, before[g.h], now)
		require.Len(t, kernelObjects(t, g.daemon())["link"], links)
		require.Equal(t, rules, w.ruleset(g.h))
	}
	observe := s
	observe.Mode = "observe"
	g1, g2 := w.upBoth(observe)
	to := w.h2.AddrPort4(echoPort).String()
	for _, g := range []*gw{g1, g2} {
		untouched(g, 3)
	}
	fallback{w: w, t: t, from: w.h1, to: to, client: local("mode"), server: local("mode")}.ping()
	for _, g := range []*gw{g1, g2} {
		g.turn(s, report.ModeOff)
		untouched(g, 0)
		require.Equal(t, report.ModeOff, g.status().Mode)
		g.turn(s, report.ModeObserve)
		untouched(g, 3)
	}
	for range 2 {
		g1.turn(s, report.ModeEnforce)
		require.NotEqual(t, before[w.h1], w.touched(w.h1))
		g2.turn(s, report.ModeEnforce)
		w.flush()
		w.carried(t, w.h1, to)
		held, e := w.holdInTime(t, to)

		g1.turn(s, report.ModeObserve)
		fallback{w: w, t: t, from: w.h1, to: to, client: local("mode")}.ping()
		require.NotEqual(t, before[w.h1].footprint, w.footprint(w.h1), "a connection is carried")
		pings(t, held, 1)
		leaves(t, held)
		w.carriedBy(e, w.via)
		untouched(g1, 3)
		g2.turn(s, report.ModeObserve)
		untouched(g2, 3)
		require.Zero(t, w.residue(w.h1).rendezvous)
		require.Positive(t, g1.status().FlowsTotal[w.via], "what was counted stays")
	}
	g1.turn(s, report.ModeEnforce)
	g2.turn(s, report.ModeEnforce)
	w.flush()
	w.carried(t, w.h1, to)
	for _, g := range []*gw{g1, g2} {
		g.stop()
		require.Equal(t, before[g.h], w.touched(g.h))
	}
}

// TestObserveTakeover checks that a gateway that carries and one that observes can take over from each other, and
// that what the old one carries goes on.
func TestObserveTakeover(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	s := settings{Mode: "observe"}
	w.bare(w.h1)
	before := w.touched(w.h1)
	g := w.up(w.h1, s)
	w.up(w.h2, settings{})
	to := w.h2.AddrPort4(echoPort).String()

	s.Mode = "enforce"
	g.rewrite(s)
	next := g.upgrade()
	g.ended(t)
	w.carried(t, w.h1, to)
	held, _ := w.holdInTime(t, to)

	s.Mode = "observe"
	next.rewrite(s)
	last := next.upgrade()
	fallback{w: w, t: t, from: w.h1, to: to, client: local("mode")}.ping()
	require.Equal(t, report.ModeObserve, last.status().Mode)
	pings(t, held, 1)
	leaves(t, held)
	next.ended(t)
	require.Eventually(t, func() bool { return reflect.DeepEqual(before, w.touched(w.h1)) }, slowed(30*time.Second), 50*time.Millisecond)
}

// TestObserveRefused checks that, if what the mode enforce needs cannot be set up, the gateway stays as it was and
// refuses the configuration, until it can be.
func TestObserveRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	s := settings{Mode: "observe", Extra: "security: { psk_file: " + filepath.Join(w.dir, "psk") + " }\n"}
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "psk"), []byte(strings.Repeat("ab", 32)), 0o600))
	w.bare(w.h1)
	g := w.up(w.h1, s)
	before := w.touched(w.h1)
	require.NoError(t, os.Remove(filepath.Join(w.dir, "psk")))
	s.Mode = "enforce"
	g.rewrite(s)
	g.reload("configuration refused")
	require.Eventually(t, func() bool { return reflect.DeepEqual(before, w.touched(w.h1)) }, slowed(30*time.Second), 50*time.Millisecond)
	require.Equal(t, report.ModeObserve, g.status().Mode)
	require.Contains(t, g.status().Degraded, "config_refused")
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "psk"), []byte(strings.Repeat("ab", 32)), 0o600))
	g.reload("configuration in force")
	require.Equal(t, report.ModeEnforce, g.status().Mode)
	require.NotContains(t, g.status().Degraded, "config_refused")
	require.NotEqual(t, before, w.touched(w.h1))
}
