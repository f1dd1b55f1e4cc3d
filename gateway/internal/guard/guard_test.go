package guard

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/leak"
)

var start = time.Unix(1_000_000, 0)

// end is one of a connection, for the model, which forgets none.
type end struct {
	at      time.Time
	aborted bool
}

// trip is a tick without a comparison.
func (g *Guard) trip(now time.Time, totals Totals) bool {
	_, trips := g.Tick(now, totals, nil, nil)
	return trips
}

// TestModel: the guard trips at the first tick at which a simple count of the ends of the
// window says so. Ticks are at the boundaries of slots, where the window is exact.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := config.Guard{
			Aborted: config.Share(rapid.IntRange(1, 10000).Draw(t, "share")), Window: slots * time.Second,
			Minimum: rapid.IntRange(1, 20).Draw(t, "minimum"),
		}
		var g Guard
		var ends []end
		var totals Totals
		now, from := start, start
		g.Configure(cfg, now, totals)
		for range rapid.IntRange(1, 100).Draw(t, "ticks") {
			now = now.Add(time.Second)
			for range rapid.IntRange(0, 5).Draw(t, "ends") {
				e := end{now, rapid.IntRange(0, 3).Draw(t, "aborted") == 0}
				ends = append(ends, e)
				totals.Ended++
				if e.aborted {
					totals.Aborted++
				}
			}
			want := naive(cfg, ends, from, now)
			require.Equal(t, want, g.trip(now, totals))
			require.LessOrEqual(t, len(g.past), slots+2)
			if !want {
				require.Equal(t, Watching, g.State())
				continue
			}
			require.Equal(t, Tripped, g.State())
			require.False(t, g.trip(now, Totals{Ended: 1 << 30, Aborted: 1 << 30}), "once")
			from = now
			if rapid.Bool().Draw(t, "configured") {
				g.Configure(cfg, now, totals)
			} else {
				g.Reset(now, totals)
			}
		}
	})
}

// naive counts what ended in the window, after the last reset.
func naive(cfg config.Guard, ends []end, from, now time.Time) bool {
	all, bad := 0, 0
	for _, e := range ends {
		if e.at.After(from) && now.Sub(e.at) < cfg.Window {
			all++
			if e.aborted {
				bad++
			}
		}
	}
	return bad >= cfg.Minimum && float64(bad)/float64(all) >= cfg.Aborted.Percent()/100
}

// A guard that is off never trips, and a reset does not turn it on.
func TestOff(t *testing.T) {
	var g Guard
	g.Configure(config.Guard{Aborted: config.NoShare, Slower: config.NoShare, Window: time.Minute, Minimum: 1}, start, Totals{})
	g.Reset(start, Totals{})
	require.False(t, g.trip(start.Add(time.Hour), Totals{Ended: 100, Aborted: 100}))
	require.Equal(t, Off, g.State())
}

// What applications and operators reset does no harm.
func TestTotals(t *testing.T) {
	require.Equal(t, Totals{Ended: 31, Aborted: 6}, TotalsOf([]report.EndCount{
		{Reason: "closed", Count: 10},
		{Reason: "app_reset", Count: 9},
		{Reason: "off", Count: 4},
		{Reason: "drained", Count: 2},
		{Reason: "peer_dead", Count: 5},
		{Reason: "internal_error", Count: 1},
	}))
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
