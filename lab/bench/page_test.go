package bench

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/comparison"
)

// measured is a report with one congestion control: by metric and variant, values and the unit.
func measured(cc string, series ...comparison.Series) *comparison.Report {
	return &comparison.Report{Machine: comparison.Machine{CongestionControl: cc}, Series: series}
}

func TestPage(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "BENCHMARKS.md")
	require.NoError(t, os.WriteFile(name, []byte("# Head\n"+pageBegin+"old\n"+pageEnd+"tail\n"), 0o644))
	var files []string
	for _, r := range []*comparison.Report{
		measured("bbr", comparison.Series{Work: bulk1, Variant: comparison.TCP, Unit: "x", Values: []float64{1, math.NaN(), 3}},
			comparison.Series{Work: bulk1, Variant: Shm, Unit: "x", Values: []float64{0.5, 1, 1.5}}),
		measured("cubic", comparison.Series{Work: bulk1, Variant: comparison.TCP, Unit: "x", Values: []float64{1}},
			comparison.Series{Work: bulk1, Variant: Shm, Unit: "x", Values: []float64{0.5}}),
	} {
		f, err := os.Create(filepath.Join(dir, r.Machine.CongestionControl+".json"))
		require.NoError(t, err)
		require.NoError(t, r.JSON(f))
		require.NoError(t, f.Close())
		files = append(files, f.Name())
	}
	for range 2 { // the second time nothing changes
		require.NoError(t, WritePage(name, files))
	}
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	text := string(b)
	require.Regexp(t, "^# Head\n", text)
	require.Regexp(t, "tail\n$", text)
	require.NotContains(t, text, "old")
	require.NotContains(t, text, "## In process")
	require.NotContains(t, text, "## What the gateway costs")
	require.NotContains(t, text, "## What an idle connection has")
	for _, want := range []string{
		"- **cubic**, the Linux default: one bulk stream over shared memory is 0.50 × TCP, over the soft device – TCP.\n- **bbr**: ",
		"| one bulk stream | 2.00 x | 0.50 (0.50–0.50) × |",
	} {
		require.Contains(t, text, want)
	}
	require.Error(t, WritePage(name, []string{name}))
	require.NoError(t, os.WriteFile(name, []byte(pageBegin), 0o644))
	require.ErrorIs(t, WritePage(name, files), errMarkers)
}

// Each table is of the first report that has it.
func TestTables(t *testing.T) {
	one := func(work, variant, unit string, v float64) comparison.Series {
		return comparison.Series{Work: work, Variant: variant, Unit: unit, Values: []float64{v}}
	}
	text := front([]*comparison.Report{measured(Usual), measured("bbr",
		one(bulk1, comparison.TCP, "Gbit/s", 50), one(bulk1, InProcess, "Gbit/s", 250), one(local+bulk1, comparison.TCP, "Gbit/s", 10),
		one(local+bulk1, InProcess, "Gbit/s", 40), one(bulk1, Shm, "Gbit/s", 40), one(bulk1+cpu, comparison.TCP, "s/GB", 0.25), one(bulk1+cpu, Shm, "s/GB", 0.5),
		one(bulk1+gatewaysCPU, Shm, "s/GB", 0.2), one(rate8+gatewaysCPU, Shm, "µs", 900), one(ping64+median, Shm, "µs", 33),
		one(idle+idleOwn, Shm, "KiB each", 12.5), one(idle+idleKernel, comparison.TCP, "KiB each", 9), one(idle+idleKernel, Shm, "KiB each", -3),
	)})
	for _, want := range []string{
		"by plain TCP with bbr", "| one bulk stream | 50.0 Gbit/s | 5.00 × | 4.00 × |\n", "| the same with spin, median | – | – | – |\n",
		"Processor time with bbr", "| 10⁹ bytes of one stream | 0.25 s/GB | 0.5 s/GB | 0.2 s/GB |", "| 64 bytes there and back | – | – | – |",
		"| connect, request, close | – | – | 900 µs |", "40.0 Gbit/s and less", "more than 0.5 s/GB", "longer than 33.0 µs",
		"of each gateway | – | 12.5 | – |", "sockets | 9.00 | – | – |",
	} {
		require.Contains(t, text, want)
	}
}

// The committed page has all sections that are written.
func TestPageHasSections(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "BENCHMARKS.md"))
	require.NoError(t, err)
	_, err = between(string(b), "")
	require.NoError(t, err)
	_, written, _ := strings.Cut(string(b), pageBegin)
	written, _, _ = strings.Cut(written, pageEnd)
	for line := range strings.Lines(front([]*comparison.Report{measured(Usual)})) {
		if strings.HasPrefix(line, "#") {
			require.Contains(t, written, "\n"+line)
		}
	}
}

// A row about a metric that no work has would be empty in silence.
func TestRowsAreMeasured(t *testing.T) {
	var names []string
	for _, w := range works() {
		for _, m := range w.metrics() {
			require.NotContains(t, names, m.Name)
			names = append(names, m.Name)
		}
	}
	for _, w := range promotedRows {
		require.Contains(t, names, w.metric)
		require.Contains(t, names, local+w.metric)
	}
	for _, w := range append(steeredRows, idleRows...) {
		require.Contains(t, names, w.metric)
	}
	for _, c := range costRows {
		require.Contains(t, append(names, ""), c.machine)
		require.Contains(t, names, c.gateways)
	}
}
