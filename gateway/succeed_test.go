package gateway

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/host"
)

// retiring is a datapath that leaves new connections to another.
type retiring struct{ host.Beside }

func (retiring) Retire() error { return nil }

// Opt-ins and readers stay with the gateway that takes the place of another, and what is
// counted keeps its rule.
func TestInheritOptIns(t *testing.T) {
	cfg := config.Config{
		CgroupPath: t.TempDir(), Mode: config.ModeObserve,
		Policy: []config.Rule{{Name: "web", Match: config.Match{Ports: config.Ports(80)}, Action: config.ActionAccelerate}},
	}.WithDefaults()
	begin := func() (*gateway, *fakeSteering) {
		steer := newFakeSteering()
		g, err := newGateway(cfg, Host{Steering: steer, Beside: retiring{}}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		t.Cleanup(g.close)
		return g, steer
	}
	old, before := begin()
	next, after := begin()
	require.NoError(t, os.Mkdir(filepath.Join(cfg.CgroupPath, "job"), 0o700))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(filepath.Join(cfg.CgroupPath, "job"), &st))
	end, err := old.OptIn(admin.OptIn{Cgroup: "/job", ID: st.Ino})
	require.NoError(t, err)
	require.Len(t, before.policy, 2)
	before.counters.Decided = []ebpf.Decided{{Rule: 0, Accelerate: 3}, {Rule: 1, Accelerate: 5}}

	require.NoError(t, next.inherit(old))
	require.Same(t, old.Feed(), next.Feed())
	require.Same(t, old.env.Lines, next.env.Lines)
	require.Same(t, old.renewal, next.renewal)
	require.Same(t, old.reloads, next.reloads)
	require.Equal(t, before.policy, after.policy)
	after.counters.Decided = []ebpf.Decided{{Rule: 0, Accelerate: 1}, {Rule: 1, Accelerate: 2}}
	counts := []admin.DecisionCount{
		{Action: config.ActionAccelerate, Rule: "run", Count: 4}, {Action: config.ActionAccelerate, Rule: "web", Count: 7},
	}
	require.ElementsMatch(t, counts, next.Snapshot().Decisions)
	end()
	require.Len(t, after.policy, 1)
	require.ElementsMatch(t, counts, next.Snapshot().Decisions)
	after.counters.Decided[0].Accelerate = 2
	counts[1].Count = 8
	require.ElementsMatch(t, counts, next.Snapshot().Decisions)
}
