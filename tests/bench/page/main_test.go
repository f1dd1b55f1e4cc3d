package main

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/bench/report"
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

func TestPage(t *testing.T) {
	docs := t.TempDir()
	name := filepath.Join(docs, page)
	require.NoError(t, os.WriteFile(name, []byte("# Head\n"+begin+"old\n"+end+"tail\n"), 0o644))
	one := func(cc, work string, values ...float64) *paper.Report {
		return &paper.Report{Report: report.Report{
			Machine: report.Machine{CongestionControl: cc}, Rounds: len(values), Commands: []string{"smcgw " + work},
			Series: []report.Series{{Work: work, Variant: report.TCP, Unit: "x", Values: values}},
		}}
	}
	files := []string{
		save(t, docs, "a.json", one("bbr", "bulk, 1 stream", 1, math.NaN(), 3)),
		save(t, docs, "b.json", one("bbr", "redis -c1", 5, 6)),
		save(t, docs, "c.json", one("cubic", "bulk, 1 stream", 7)),
	}
	for range 2 { // the second time nothing changes
		require.NoError(t, run(docs, files))
	}
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	text := string(b)
	require.Regexp(t, "^# Head\n", text)
	require.Regexp(t, "tail\n$", text)
	require.NotContains(t, text, "old")
	for _, want := range []string{
		"### With congestion control bbr", "### With congestion control cubic", "smcgw redis -c1",
		"(bench/bulk.svg)", "(bench/redis.svg)", "(bench/bulk-cubic.svg)", "**redis -c1**",
	} {
		require.Contains(t, text, want)
	}
	require.FileExists(t, filepath.Join(docs, "bench/bulk-cubic.svg"))
	require.NoFileExists(t, filepath.Join(docs, "bench/web.svg"))
}

func TestPageWithoutMarkers(t *testing.T) {
	_, err := between("text", "new")
	require.ErrorIs(t, err, errMarkers)
	_, err = between("text"+begin, "new")
	require.ErrorIs(t, err, errMarkers)
}
