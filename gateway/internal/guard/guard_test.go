package guard

import (
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/ebpf"
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

// took is one connection, for the model, which forgets none.
type took struct {
	at time.Time
	of ebpf.Compared
}

func names(i int) string { return []string{"a", "b"}[i] }

// TestComparisonModel: the comparison is that of all connections of the window, sorted, as
// a simple count has it. Looks are at the boundaries of slots, where the window is exact.
func TestComparisonModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const window = slots * time.Second
		var c comparison
		var all []took
		now := start
		for range rapid.IntRange(1, 40).Draw(t, "looks") {
			now = now.Add(time.Second)
			var list []ebpf.Compared
			for range rapid.IntRange(0, 12).Draw(t, "ends") {
				v := ebpf.Compared{
					Rule: rapid.IntRange(0, 1).Draw(t, "rule"), Past: rapid.IntRange(0, 9).Draw(t, "past") == 0,
					Offered: rapid.Bool().Draw(t, "offered"), Size: rapid.Uint8Range(0, 1).Draw(t, "size"),
					Lasted: rapid.Uint8().Draw(t, "lasted"), Count: rapid.Uint64Range(1, 8).Draw(t, "count"),
				}
				list = append(list, v)
				all = append(all, took{now, v})
			}
			c.add(now, window, list, names)
			require.Equal(t, naively(all, now, window), c.rules())
		}
	})
}

// naively sorts the native connections of each rule and size.
func naively(all []took, now time.Time, window time.Duration) map[string]report.Compared {
	out := map[string]report.Compared{}
	for rule := range 2 {
		for size := range uint8(2) {
			var lasted [2][]uint8
			for _, v := range all {
				if v.of.Past || v.of.Rule != rule || v.of.Size != size || now.Sub(v.at) >= window {
					continue
				}
				for range v.of.Count {
					lasted[index(v.of.Offered)] = append(lasted[index(v.of.Offered)], v.of.Lasted)
				}
			}
			native, offered := lasted[0], lasted[1]
			if len(native) < 20 || len(offered) == 0 {
				continue
			}
			slices.Sort(native)
			limit := native[len(native)-1-len(native)/20]
			r := out[names(rule)]
			r.Native += uint64(len(native))
			r.Offered += uint64(len(offered))
			for _, l := range offered {
				if l > limit {
					r.Slower++
				}
			}
			out[names(rule)] = r
		}
	}
	return out
}

// A guard that compares trips by the rule whose connections are slower, and by no other:
// also not where all connections are slow.
func TestSlower(t *testing.T) {
	var g Guard
	cfg := config.Guard{Aborted: config.NoShare, Slower: 50 * 100, Window: time.Minute, Minimum: 5}
	g.Configure(cfg, start, Totals{})
	now := start.Add(time.Second)
	_, trips := g.Tick(now, Totals{Ended: 100, Aborted: 100}, []ebpf.Compared{
		{Rule: 0, Lasted: 200, Count: 50},
		{Rule: 0, Lasted: 200, Offered: true, Count: 50},
		{Rule: 1, Lasted: 10, Count: 19},
		{Rule: 1, Lasted: 90, Offered: true, Count: 50},
	}, names)
	require.False(t, trips, "too few native ones, and resets do not count")
	require.Equal(t, map[string]report.Compared{"a": {Native: 50, Offered: 50}}, g.Compared())
	last, trips := g.Tick(now, Totals{}, []ebpf.Compared{{Rule: 1, Lasted: 10, Count: 1}}, names)
	require.True(t, trips)
	require.Equal(t, Trip{Cause: CauseSlower, Rule: "b", Compared: report.Compared{Native: 20, Offered: 50, Slower: 50}}, last)
	g.Reset(now, Totals{})
	require.Empty(t, g.Compared())
	require.False(t, g.trip(now, Totals{}), "counts anew")
}

// What is kept of a window has a bound.
func TestComparisonIsBounded(t *testing.T) {
	var c comparison
	var list []ebpf.Compared
	for i := range maxCells + 100 {
		list = append(list, ebpf.Compared{Rule: i, Count: 2})
	}
	c.add(start, time.Minute, list, func(i int) string { return strconv.Itoa(i) })
	require.Equal(t, maxCells, c.cells)
	require.EqualValues(t, 200, c.forgotten)
	for i := range 2 * slots {
		c.add(start.Add(time.Duration(i)*time.Minute), time.Minute, list[:1], func(int) string { return "a" })
	}
	require.LessOrEqual(t, c.cells, 2)
}
