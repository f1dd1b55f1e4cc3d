package gateway

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// TestMissedNatives: events that the programs had no room for are told while native
// connections are, each once.
func TestMissedNatives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config.Config{Mode: report.ModeObserve, Log: config.Log{Access: config.AccessAll}}.WithDefaults()
		cfg.StateDir = t.TempDir()
		var text bytes.Buffer
		log := slog.New(slog.NewTextHandler(&text, nil))
		steer := newFakeSteering()
		g, err := newGateway(cfg, &site{localHost: localHost{Steering: steer, Beside: retiring{}}}, nil, log)
		require.NoError(t, err)
		t.Cleanup(g.close)
		lose := func(s *fakeSteering, total uint64) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.counters.Stats = map[string]uint64{"event_lost": total}
		}
		told := func() (counts []string) {
			for line := range strings.Lines(text.String()) {
				if _, n, ok := strings.Cut(line, "native connections missing in the access log: they came too fast\" count="); ok {
					counts = append(counts, strings.TrimSpace(n))
				}
			}
			text.Reset()
			return counts
		}
		work := func(g *gateway) {
			ctx, stop := context.WithTimeout(t.Context(), 3*chores+chores/2)
			defer stop()
			g.choreLoop(ctx)
		}
		lose(steer, 5)
		work(g)
		require.Equal(t, []string{"5"}, told())

		quiet := cfg
		quiet.Log.Access = config.AccessCarried
		lose(steer, 6)
		require.NoError(t, g.reload(quiet, nil))
		require.Equal(t, []string{"1"}, told(), "to the log as it was")
		lose(steer, 8)
		work(g)
		require.NoError(t, g.reload(cfg, nil))
		require.Empty(t, told())
	})
}
