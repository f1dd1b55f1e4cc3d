package comparison

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// example has works either way, a round that failed, and one round only.
func example() *Report {
	return &Report{Rounds: 3, Notes: []string{"one machine"}, Series: []Series{
		{Work: "ping-pong 64 B, p50", Variant: TCP, Unit: "µs", Better: Less, Values: []float64{21.5, 22, nan}},
		{Work: "ping-pong 64 B, p50", Variant: "shm", Unit: "µs", Better: Less, Values: []float64{33, 35.2, 30}},
		{Work: "once", Variant: TCP, Unit: "s/GB", Better: Less, Values: []float64{0.5}},
		{Work: "once", Variant: "shm", Unit: "s/GB", Better: Less, Values: []float64{0.4}, Note: "a\x1b[31m\nb"},
	}}
}

// Nothing of a name reaches the terminal as a command.
func TestText(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, example().Text(&b))
	require.NotContains(t, b.String(), "\x1b")
	lines := strings.Split(b.String(), "\n")
	require.Equal(t, []string{
		"ping-pong 64 B, p50 (µs, less is better)",
		"  VARIANT  MEDIAN  MIN   MAX   ROUNDS  VS TCP             NOTE",
		"  tcp      21.8    21.5  22.0  2 of 3  -                  -",
		"  shm      33.0    30.0  35.2  3       1.57× (1.53–1.60)  -",
		"  plain TCP wins against shm by 1.57×",
	}, lines[1:6])
	require.Equal(t, []string{"", "one machine", ""}, lines[len(lines)-3:])
	b.Reset()
	require.NoError(t, (&Report{}).Text(&b))
	require.Equal(t, "nothing was measured\n", b.String())
}

// TestAbsentVariants: what could not be measured at all has one line, and the others a summary.
func TestAbsentVariants(t *testing.T) {
	r := example()
	for _, work := range append(r.Works(), "idle") {
		if work == "idle" {
			r.Series = append(r.Series, Series{Work: work, Variant: TCP, Note: "none"}, Series{Work: work, Variant: "hw", Note: "no adapter"})
			continue
		}
		r.Series = append(r.Series, Series{Work: work, Variant: "hw", Note: "no adapter"}, Series{Work: work, Variant: "soft", Note: work})
	}
	var b bytes.Buffer
	require.NoError(t, r.Text(&b))
	require.Equal(t, 1, strings.Count(b.String(), "no adapter"))
	require.Contains(t, b.String(), "\nhw was not measured: no adapter\n")
	require.NotContains(t, b.String(), "  hw")
	require.NotContains(t, b.String(), "idle")
	require.Contains(t, b.String(), "\n  soft     -       -", "for different reasons")
	require.Contains(t, b.String(), strings.Join([]string{
		"Summary: the median of plain TCP, and the others' as a multiple of it",
		"  WORK                 BETTER  tcp       shm    soft",
		"  ping-pong 64 B, p50  less    21.8 µs   1.57×  -",
		"  once                 less    0.5 s/GB  0.80×  -",
		"", "one machine", "",
	}, "\n"))
}

func TestVerdict(t *testing.T) {
	require.Equal(t, "plain TCP wins against chain1 by 2.00×; plain TCP is ahead within the spread of soft9000",
		(&Report{Series: []Series{
			{Work: "w", Variant: TCP, Values: []float64{4, 4, 4}},
			{Work: "w", Variant: "chain1", Values: []float64{2, 2, 2}},
			{Work: "w", Variant: "soft9000", Values: []float64{3.9, 3.9, 4.1}},
			{Work: "w", Variant: "shm", Values: []float64{8, 8, 8}},
		}}).Verdict("w"))
	r := example()
	require.Equal(t, "plain TCP wins against shm by 1.57×", r.Verdict("ping-pong 64 B, p50"))
	require.Equal(t, "plain TCP wins against none", r.Verdict("once"))
	require.Equal(t, "plain TCP was not measured: nothing to compare with", r.Verdict("none"))
	require.Equal(t, "nothing but plain TCP was measured", (&Report{Series: []Series{{Work: "w", Variant: TCP, Values: []float64{1}}}}).Verdict("w"))
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.12345: "0.123", 1: "1.00", 12.34: "12.3", 123.4: "123", 123456: "123456", -2: "-2.00", 1e18: "1e+18",
	} {
		require.Equal(t, want, Number(v))
	}
	require.Equal(t, "-", Number(nan))
}

// full refuses to be written to.
type full struct{}

var errFull = errors.New("disk full")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWriteErrorsAreReported(t *testing.T) {
	require.ErrorIs(t, example().Text(full{}), errFull)
	require.ErrorIs(t, example().JSON(full{}), errFull)
}

var nan = math.NaN()

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		name   string
		values []float64
		want   Spread
	}{
		{"one round", []float64{3}, Spread{3, 3, 3, 1}},
		{"odd", []float64{5, 1, 3}, Spread{3, 1, 5, 3}},
		{"even", []float64{4, 1, 2, 8}, Spread{3, 1, 8, 4}},
		{"a round failed", []float64{nan, 2, 4}, Spread{3, 2, 4, 2}},
		{"endless", []float64{math.Inf(1), 2}, Spread{2, 2, 2, 1}},
		{"huge", []float64{math.MaxFloat64, math.MaxFloat64}, Spread{math.MaxFloat64, math.MaxFloat64, math.MaxFloat64, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, Series{Values: c.values}.Spread())
		})
	}
	for _, none := range [][]float64{nil, {}, {nan, nan}} {
		s := Series{Values: none}.Spread()
		require.Zero(t, s.N)
		require.True(t, math.IsNaN(s.Median) && math.IsNaN(s.Min) && math.IsNaN(s.Max))
	}
}

func TestSpreadLeavesTheRoundsAlone(t *testing.T) {
	s := Series{Values: []float64{3, nan, 1}}
	s.Spread()
	require.Equal(t, 3.0, s.Values[0])
	require.Equal(t, 1.0, s.Values[2])
}

func TestRatioPairsRounds(t *testing.T) {
	r := &Report{Series: []Series{
		{Work: "bulk", Variant: TCP, Values: []float64{10, 100, nan, 0, 50}},
		{Work: "bulk", Variant: "shm", Values: []float64{20, 100, 7, 7}},
		{Work: "bulk", Variant: "soft", Values: []float64{nan, nan}},
		{Work: "other", Variant: "shm", Values: []float64{1}},
	}}
	got, ok := r.Ratio("bulk", "shm", TCP)
	require.True(t, ok)
	require.Equal(t, Spread{1.5, 1, 2, 2}, got)

	for _, c := range [][3]string{{"bulk", "soft", TCP}, {"bulk", "hw", TCP}, {"bulk", "shm", "chain1"}, {"other", "shm", TCP}, {"none", "shm", TCP}} {
		got, ok := r.Ratio(c[0], c[1], c[2])
		require.False(t, ok, c)
		require.Zero(t, got.N)
		require.True(t, math.IsNaN(got.Median))
	}
}
