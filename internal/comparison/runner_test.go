package comparison

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// fake is a work that only notes that it was done.
type fake struct {
	done []string // names of cells
}

func (f *fake) cell(variant string, values ...float64) Cell {
	return Cell{Variant: variant, Run: func(context.Context, time.Duration) ([]float64, error) {
		f.done = append(f.done, variant)
		return values, nil
	}}
}

var speed = Metric{"speed", "m/s", More}

func runOf(t *testing.T, rounds int, works ...Work) ([]Series, string) {
	var log strings.Builder
	r := Runner{Rounds: rounds, Duration: time.Second, Limit: 10 * time.Second, Log: &log}
	series, err := r.Run(t.Context(), works)
	require.NoError(t, err)
	return series, log.String()
}

// Each round does everything, a short one that does not count comes first, and
// the order turns.
func TestRoundsInterleave(t *testing.T) {
	var f fake
	series, _ := runOf(t, 3, Work{Name: "w", Metrics: []Metric{speed}, Cells: []Cell{f.cell("a", 1), f.cell("b", 2), f.cell("c", 3)}})
	require.Equal(t, "abc abc bca cab", strings.Join([]string{
		strings.Join(f.done[:3], ""), strings.Join(f.done[3:6], ""), strings.Join(f.done[6:9], ""), strings.Join(f.done[9:], ""),
	}, " "))
	require.Len(t, series, 3)
	for i, s := range series {
		require.Equal(t, Series{
			Work: "speed", Variant: string(rune('a' + i)), Unit: "m/s", Better: More,
			Values: []float64{float64(i + 1), float64(i + 1), float64(i + 1)},
		}, s)
	}
}

// A work that is repeated has a value for each time.
func TestRepeatedWork(t *testing.T) {
	var f fake
	series, _ := runOf(t, 2, Work{Name: "w", Times: 3, Metrics: []Metric{speed}, Cells: []Cell{f.cell("a", 1)}})
	require.Len(t, series[0].Values, 6)
	require.Len(t, f.done, 1+6)
}

// What fails is a NaN at its place, and said; the rest goes on.
func TestFailedRunIsNaN(t *testing.T) {
	var f fake
	n := 0
	bad := Cell{Variant: "bad", Run: func(context.Context, time.Duration) ([]float64, error) {
		if n++; n == 3 { // the first is the one that does not count
			return nil, errors.New("no luck")
		}
		return []float64{2}, nil
	}}
	series, log := runOf(t, 3, Work{Name: "w", Metrics: []Metric{speed}, Cells: []Cell{bad, f.cell("good", 1)}})
	require.Len(t, series, 2)
	require.Equal(t, "1 of 3 rounds failed: no luck", series[0].Note)
	require.Equal(t, []float64{2, 2}, []float64{series[0].Values[0], series[0].Values[2]})
	require.True(t, math.IsNaN(series[0].Values[1]))
	require.Equal(t, []float64{1, 1, 1}, series[1].Values)
	require.Contains(t, log, "round 2: w, bad: no luck")
	ratio, ok := (&Report{Series: series}).Ratio("speed", "bad", "good")
	require.True(t, ok)
	require.Equal(t, Spread{Median: 2, Min: 2, Max: 2, N: 2}, ratio)
}

// What cannot be done has no value, and says why; what a way has not is kept where it is wanted.
func TestMissing(t *testing.T) {
	var f fake
	gone := f.cell("gone", 1)
	gone.Missing = "no gateway"
	noted := f.cell("noted", math.NaN())
	noted.Note = func() string { return "after all" }
	var told []int
	r := Runner{Rounds: 2, Log: &strings.Builder{}, KeepEmpty: true, Progress: func(done, total int) {
		require.Equal(t, 4, total)
		told = append(told, done)
	}}
	series, err := r.Run(t.Context(), []Work{{Name: "w", Metrics: []Metric{speed}, Cells: []Cell{gone, noted}}})
	require.NoError(t, err)
	require.Equal(t, Series{Work: "speed", Variant: "gone", Unit: "m/s", Note: "no gateway"}, series[0])
	require.Len(t, series[1].Values, 2)
	require.Equal(t, "after all", series[1].Note)
	require.NotContains(t, f.done, "gone")
	require.Equal(t, []int{0, 1, 2, 3}, told)
}

func TestNumbersPerMetric(t *testing.T) {
	var f fake
	series, _ := runOf(t, 1, Work{Name: "w", Metrics: []Metric{speed, {"cost", "s", Less}}, Cells: []Cell{f.cell("a", 1, 2), f.cell("short", 1)}})
	require.Len(t, series, 4)
	require.Equal(t, []float64{2}, series[2].Values)
	require.Contains(t, series[1].Note, "1 numbers instead of 2")
}

func TestRunThatHangs(t *testing.T) {
	r := Runner{Rounds: 1, Limit: 20 * time.Millisecond, Log: &strings.Builder{}}
	hang := Cell{Variant: "a", Run: func(ctx context.Context, _ time.Duration) ([]float64, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}}
	series, err := r.Run(t.Context(), []Work{{Name: "w", Metrics: []Metric{speed}, Cells: []Cell{hang}}})
	require.NoError(t, err)
	require.Contains(t, series[0].Note, errTooLong.Error())
}

// What was measured before the end is there.
func TestEndOfContextEndsAll(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	r := Runner{Rounds: 3, Limit: time.Minute, Log: &strings.Builder{}}
	n := 0
	c := Cell{Variant: "a", Run: func(context.Context, time.Duration) ([]float64, error) {
		if n++; n == 4 { // the first is the one that does not count
			cancel(stop)
		}
		return []float64{float64(n)}, nil
	}}
	series, err := r.Run(ctx, []Work{{Name: "w", Metrics: []Metric{speed}, Cells: []Cell{c}}})
	require.ErrorIs(t, err, stop)
	require.Equal(t, 2, r.Done)
	require.Equal(t, []float64{2, 3}, series[0].Values)
}

func TestFewerRoundsOfAWork(t *testing.T) {
	var f fake
	rare := Work{Name: "rare", Rounds: 1, Metrics: []Metric{speed}, Cells: []Cell{f.cell("a", 1)}}
	series, _ := runOf(t, 3, rare)
	require.Equal(t, []float64{1}, series[0].Values)
}

// Rounds that do not fit into the budget are not begun; one always is.
func TestBudget(t *testing.T) {
	var f fake
	var log strings.Builder
	r := Runner{Rounds: 5, Limit: time.Minute, Budget: time.Nanosecond, Log: &log}
	series, err := r.Run(t.Context(), []Work{{Name: "w", Metrics: []Metric{speed}, Cells: []Cell{f.cell("a", 1)}}})
	require.NoError(t, err)
	require.Len(t, series[0].Values, 1)
	require.Contains(t, log.String(), "no time for more than 1 rounds of 5")
}

// A number that a way has not is left out, one that failed is not.
func TestNumbersThatAWayHasNot(t *testing.T) {
	var f fake
	bad := Cell{Variant: "bad", Run: func(context.Context, time.Duration) ([]float64, error) { return nil, errors.New("no luck") }}
	series, _ := runOf(t, 2, Work{
		Name: "w", Metrics: []Metric{speed, {"gateways", "s", Less}},
		Cells: []Cell{f.cell("tcp", 1, math.NaN()), f.cell("shm", 1, 2), bad},
	})
	var names []string
	for _, s := range series {
		names = append(names, s.Work+" "+s.Variant)
	}
	require.Equal(t, []string{"speed tcp", "speed shm", "speed bad", "gateways shm", "gateways bad"}, names)
}

func TestNoWarmUp(t *testing.T) {
	var f fake
	series, _ := runOf(t, 2, Work{Name: "w", NoWarmUp: true, Metrics: []Metric{speed}, Cells: []Cell{f.cell("a", 1)}})
	require.Len(t, series[0].Values, 2)
	require.Len(t, f.done, 2)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
