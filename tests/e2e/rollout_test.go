package e2e

import (
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// TestRolloutShare checks that a share of the connections is carried and the rest is native with the reason canary,
// at the client only. Two hosts with one seed must choose the same connections, and a reload and the admin call must
// change the share.
func TestRolloutShare(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	half := settings{Extra: "rollout: { percent: 50 }\n"}
	g1, g2 := w.upBoth(half)
	const conns = 60
	churn := func() (carried, canary uint64) {
		before := g1.status()
		w.mustApp(w.h1, "churn", "-count", strconv.Itoa(conns), "-parallel", "4", "-to", w.h2.AddrPort4(transferPort).String())
		after := g1.status()
		return after.FlowsTotal[w.via] - before.FlowsTotal[w.via], after.FallbacksTotal["canary"] - before.FallbacksTotal["canary"]
	}
	share := func(percent string) {
		_, err := g1.client().Set(t.Context(), admin.Setting{Name: admin.SettingShare, Value: percent})
		require.NoError(t, err)
	}
	carried, canary := churn()
	require.Greater(t, carried, uint64(conns/6))
	require.Greater(t, canary, uint64(conns/6))
	require.LessOrEqual(t, carried+canary, uint64(conns))
	require.Zero(t, g2.status().FallbacksTotal["canary"], "what is offered is in the share of the server, too")
	share("0")
	carried, canary = churn()
	require.Zero(t, carried)
	require.EqualValues(t, conns, canary)
	share("100%")
	_, canary = churn()
	require.Zero(t, canary)
	require.Positive(t, g2.status().FallbacksTotal["canary"], "its share is half still")
	g1.reload("configuration in force")
	p, err := g1.client().Policy(t.Context())
	require.NoError(t, err)
	require.InDelta(t, 50, p.Rollout.Percent, 0.01)
	require.Equal(t, "test", p.Rules[0].Name)
	require.Positive(t, p.Rules[0].Selected)
	require.Positive(t, p.Rules[0].Passed)
}

// TestGuardTrips checks that connections that die with the peer's gateway trip the guard, and that new ones are then
// native until smcgw on.
func TestGuardTrips(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	g1 := w.up(w.h1, settings{Extra: "guard: { aborted: 10%, window: 1h, minimum: 3 }\n"})
	w.up(w.h2, settings{})
	to := w.h2.AddrPort4(echoPort).String()
	w.carried(t, w.h1, to)
	var held []*testnet.Proc
	for range 4 {
		p, _ := w.holdInTime(t, to)
		held = append(held, p)
	}
	g2 := w.gateways[w.h2]
	g2.signal(g2.daemon(), syscall.SIGKILL)
	require.Error(t, g2.proc.Wait())
	for _, p := range held {
		_ = p.CloseInput()
		_ = p.Wait()
	}
	require.Eventually(t, func() bool { return g1.status().Mode == report.ModeObserve }, slowed(30*time.Second), 50*time.Millisecond)
	st := g1.status()
	require.Contains(t, st.Degraded, "guard_tripped")
	require.Contains(t, fmt.Sprint(st.Notes), "guard: tripped")
	require.NoError(t, g1.proc.WaitOutput(patience(t), "guard tripped"))
	m := g1.metrics(t)
	require.EqualValues(t, 1, m["smcgw_guard_tripped"])
	w.up(w.h2, settings{})
	fallback{w: w, t: t, from: w.h1, to: to, client: local("mode")}.ping()
	g1.says("on")
	require.Equal(t, report.ModeEnforce, g1.status().Mode)
	require.NotContains(t, g1.status().Degraded, "guard_tripped")
	w.flush()
	w.carried(t, w.h1, to)
}

// TestGuardCompares makes short connections slower inside the share than outside, which must trip a guard that
// compares them. The host that accepts them compares nothing.
func TestGuardCompares(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	s := settings{Extra: "rollout: { percent: 50 }\nguard: { slower: 20%, window: 1h, minimum: 5 }\n"}
	g1, g2 := w.upBoth(s)
	require.Eventually(t, func() bool {
		w.mustApp(w.h1, "churn", "-count", "60", "-parallel", "2", "-to", w.h2.AddrPort4(transferPort).String())
		return g1.status().Mode == report.ModeObserve
	}, slowed(2*time.Minute), time.Second)
	st := g1.status()
	require.Positive(t, st.FlowsTotal[w.via])
	require.Contains(t, st.Degraded, "guard_tripped")
	require.Regexp(t, `\d+ of \d+ connections of rule test that were offered took longer than 95% of \d+ native ones`, fmt.Sprint(st.Notes))
	require.NoError(t, g1.proc.WaitOutput(patience(t), "cause=slower"))
	m := g1.metrics(t)
	require.EqualValues(t, 1, m[`smcgw_guard_trips_total{cause="slower"}`])
	require.Zero(t, m[`smcgw_guard_trips_total{cause="aborted"}`])
	require.GreaterOrEqual(t, m["smcgw_guard_slower_ratio"], 0.2)
	require.GreaterOrEqual(t, m[`smcgw_guard_compared_connections{kind="native"}`], 20.0)
	out := g1.says("policy")
	require.Regexp(t, `(?m)^test .* \d+%$`, out)
	require.Equal(t, report.ModeEnforce, g2.status().Mode)
	require.Zero(t, g2.metrics(t)[`smcgw_guard_compared_connections{kind="native"}`])
}

// TestObserveTells checks that both ends report by service what connections moved in the mode observe, and that a
// rule for such a service carries it.
func TestObserveTells(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	s := settings{Mode: "observe", Ports: strconv.Itoa(echoPort)}
	g1, g2 := w.upBoth(s)
	const bulk = 16 << 20
	w.mustApp(w.h1, "transfer", "-up", strconv.Itoa(bulk), "-down", "1000", "-to", w.h2.AddrPort4(transferPort).String())
	w.mustApp(w.h1, "ping", "-count", "20", "-to", w.h2.AddrPort4(echoPort).String())
	for g, side := range map[*gw]report.Side{g1: report.SideClient, g2: report.SideServer} {
		find := func(port uint16, ok func(*report.ObservedService) bool) {
			t.Helper()
			require.Eventually(t, func() bool {
				p, err := g.client().Policy(t.Context())
				require.NoError(t, err)
				for i := range p.Observed {
					if o := &p.Observed[i]; o.Port == port && o.Side == side && ok(o) {
						return true
					}
				}
				return false
			}, slowed(30*time.Second), 50*time.Millisecond, "%s %d", side, port)
		}
		find(transferPort, func(o *report.ObservedService) bool {
			return o.Ended > 0 && !o.Carries && o.BulkBytes >= bulk && o.BulkBytesPerSecond > 0
		})
		find(echoPort, func(o *report.ObservedService) bool { return o.Ended > 0 && o.Carries && o.Bulk == 0 })
		g.rewrite(settings{Mode: "enforce", Ports: strconv.Itoa(transferPort)})
		g.reload("configuration in force")
	}
	w.carriedApp(t, w.h1, "transfer", "-up", strconv.Itoa(bulk), "-down", "1000", "-to", w.h2.AddrPort4(transferPort).String())
}
