package guard

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

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
