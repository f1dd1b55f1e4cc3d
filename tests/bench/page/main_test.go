package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/bench/comparison"
	"github.com/smcgw/smcgw/lab/bench"
	"github.com/smcgw/smcgw/lab/bench/paper"
	"github.com/smcgw/smcgw/lab/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

func save(t *testing.T, dir, name string, r *paper.Report) string {
	file := filepath.Join(dir, name)
	f, err := os.Create(file)
	require.NoError(t, err)
	require.NoError(t, r.JSON(f))
	require.NoError(t, f.Close())
	return file
}

func at(t *testing.T, day string) time.Time {
	t.Helper()
	when, err := time.Parse(time.DateOnly, day)
	require.NoError(t, err)
	return when
}

func TestPage(t *testing.T) {
	dir := t.TempDir()
	name, out := filepath.Join(dir, "BENCHMARKS.md"), filepath.Join(dir, "out")
	require.NoError(t, os.WriteFile(name, []byte("# Head\n"+begin+"old\n"+end+"tail\n"), 0o644))
	one := func(cc, work string, values ...float64) *paper.Report {
		return &paper.Report{Report: comparison.Report{
			Machine: comparison.Machine{CongestionControl: cc, Time: at(t, "2026-11-20")}, Rounds: len(values), Commands: []string{"smcgw " + work},
			Series: []comparison.Series{
				{Work: work, Variant: comparison.TCP, Unit: "x", Values: values},
				{Work: work, Variant: bench.Shm, Unit: "x", Values: []float64{0.5, 1, 1.5}[:len(values)]},
			},
		}}
	}
	files := []string{
		save(t, dir, "a.json", one("bbr", bulk, 1, math.NaN(), 3)),
		save(t, dir, "b.json", one("bbr", "redis -c1", 5, 6)),
		save(t, dir, "c.json", one("cubic", bulk, 1)),
	}
	for range 2 { // the second time nothing changes
		require.NoError(t, run(name, out, files))
	}
	text := readText(t, name)
	require.Regexp(t, "^# Head\n", text)
	require.Regexp(t, "tail\n$", text)
	require.NotContains(t, text, "old")
	require.NotContains(t, text, "## In process")
	for _, want := range []string{
		"- **cubic**, the Linux default: one bulk stream over shared memory is 0.50 × TCP, over the soft device not measured.\n- **bbr**: ",
		"| one bulk stream | 2.00 x | 0.50 (0.50–0.50) × |",
	} {
		require.Contains(t, text, want)
	}
	raw := readText(t, filepath.Join(out, "2026-11-20.md"))
	for _, want := range []string{
		"## With congestion control bbr", "## With congestion control cubic", "smcgw redis -c1",
		"(2026-11-20-bbr-bulk.svg)", "(2026-11-20-bbr-redis.svg)", "(2026-11-20-cubic-bulk.svg)", "**redis -c1**",
		"| P1 | one bulk stream over shm, × TCP | ≥ 0.75 | 0.50 **missed** | – |",
		"| P1 | one bulk stream over shm, × TCP | ≥ 1.10 | – | 0.50 (0.50–0.50) **missed** |",
	} {
		require.Contains(t, raw, want)
	}
	require.FileExists(t, filepath.Join(out, "2026-11-20-cubic-bulk.svg"))
	require.NoFileExists(t, filepath.Join(out, "2026-11-20-cubic-web.svg"))
}

// TestInProcess: programs with the library have a table of their own, of the first summary that has them.
func TestInProcess(t *testing.T) {
	ratio := func(work, variant string, median float64) figure {
		return figure{Work: work, Variant: variant, Unit: "x", Ratios: map[string]spread{comparison.TCP: {Median: median, Rounds: 1}}}
	}
	some := &summary{Machine: comparison.Machine{CongestionControl: usual}, Figures: []figure{
		{Work: bulk, Variant: comparison.TCP, Unit: "Gbit/s", Value: &spread{Median: 54.3, Rounds: 1}},
		ratio(bulk, bench.InProcess, 5.25), ratio(loopback+bulk, bench.InProcess, 5), ratio(ping, bench.InProcessSpin, 0.02),
	}}
	text := inProcess([]*summary{{Machine: comparison.Machine{CongestionControl: paced}}, some})
	require.Contains(t, text, "by plain TCP with cubic")
	require.Contains(t, text, "| one bulk stream | 54.3 Gbit/s | 5.25 × | 5.00 × |\n")
	require.Contains(t, text, "| the same with spin, median | – | 0.02 × | – |\n")
	require.Empty(t, inProcess(nil))
}

func readText(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(b)
}

// TestPageHasMarkers: the committed page has a part that make bench writes, with all of its sections.
func TestPageHasMarkers(t *testing.T) {
	committed := readText(t, filepath.Join("..", "..", "..", "docs", "BENCHMARKS.md"))
	_, err := between(committed, "")
	require.NoError(t, err)
	_, generated, _ := strings.Cut(committed, begin)
	generated, _, _ = strings.Cut(generated, end)
	for line := range strings.Lines(front([]*summary{{Machine: comparison.Machine{CongestionControl: usual}}})) {
		if strings.HasPrefix(line, "#") {
			require.Contains(t, generated, "\n"+line)
		}
	}
}

// TestFiguresAreOfTheCatalogue: an aim, or a row, about a work that no run has would
// be missed in silence.
func TestFiguresAreOfTheCatalogue(t *testing.T) {
	works := bench.MetricNames()
	for _, a := range aims {
		require.Contains(t, works, a.work, a.text)
		require.True(t, (a.least == 0) != (a.most == 0), a.text)
	}
	for _, w := range shown {
		require.Contains(t, works, w.work, w.title)
	}
	for _, w := range promoted {
		require.Contains(t, works, w.work, w.title)
	}
	for _, c := range unitCosts {
		require.Contains(t, append(works, ""), c.machine, c.unit)
		require.Contains(t, works, c.gateways, c.unit)
	}
	for _, p := range parts {
		require.Contains(t, works, p.work, p.title)
	}
}

// TestCosts: what gateways cost, and have, is of the first summary that has it.
func TestCosts(t *testing.T) {
	of := func(work, variant, unit string, value float64) figure {
		return figure{Work: work, Variant: variant, Unit: unit, Value: &spread{Median: value, Rounds: 1}}
	}
	none := &summary{Machine: comparison.Machine{CongestionControl: usual}}
	some := &summary{Machine: comparison.Machine{CongestionControl: paced}, Figures: []figure{
		of(bulk, bench.Shm, "Gbit/s", 40), of(bulkCPU, comparison.TCP, "s/GB", 0.25), of(bulkCPU, bench.Shm, "s/GB", 0.5),
		of(unitCosts[0].gateways, bench.Shm, "s/GB", 0.2), of(unitCosts[2].gateways, bench.Shm, "µs", 900), of(ping, bench.Shm, "µs", 33),
		of(idleOwn, bench.Shm, "KiB each", 12.5), of(parts[2].work, comparison.TCP, "KiB each", 9),
	}}
	require.Empty(t, costs([]*summary{none}))
	require.Empty(t, memory([]*summary{none}))
	text := costs([]*summary{none, some}) + memory([]*summary{none, some})
	for _, want := range []string{
		"with bbr", "| 10⁹ bytes of one stream | 0.25 s/GB | 0.5 s/GB | 0.2 s/GB |", "| 64 bytes there and back | – | – | – |",
		"| connect, request, close | – | – | 900 µs |", "gives less than 40.0 Gbit/s", "more than 0.5 s/GB", "longer than 33.0 µs",
		"of each gateway | – | 12.5 | – |", "sockets | 9.00 | – | – |",
	} {
		require.Contains(t, text, want)
	}
}

func TestPageWithoutMarkers(t *testing.T) {
	_, err := between("text", "new")
	require.ErrorIs(t, err, errMarkers)
	_, err = between("text"+begin, "new")
	require.ErrorIs(t, err, errMarkers)
}
