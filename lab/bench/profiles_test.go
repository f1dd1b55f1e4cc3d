package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/bench/profile"
	"github.com/smcgw/smcgw/lab/testnet"
)

// seen is what perf would print of a machine that idles.
func seen(samples int) string { return strings.Repeat("swapper 0\n\tffff do_idle (k)\n\n", samples) }

// recorder is a perf that returns at once, or when the run is over.
func recorder(text string, err error, waits bool) func(context.Context, string, time.Duration, <-chan struct{}) (string, error) {
	return func(_ context.Context, _ string, _ time.Duration, done <-chan struct{}) (string, error) {
		if waits {
			<-done
		}
		return text, err
	}
}

func look1(t *testing.T, w Work, record func(context.Context, string, time.Duration, <-chan struct{}) (string, error)) (profiles int, remarks []string, dir string) {
	t.Helper()
	if !installed(profile.Program) {
		t.Setenv("PATH", fakePerf(t)+":"+os.Getenv("PATH"))
	}
	dir = filepath.Join(t.TempDir(), "new", "directory")
	r := runner{limit: 10 * time.Second, log: &strings.Builder{}}
	p := profiler{runner: &r, directory: dir, record: record}
	list, remarks, err := p.all(t.Context(), []Work{w})
	require.NoError(t, err)
	return len(list), remarks, dir
}

// fakePerf is a directory with a program of that name.
func fakePerf(t *testing.T) string {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, profile.Program), []byte("#!/bin/sh\n"), 0o755))
	return dir
}

// Only the ways that are wanted are looked at, for long enough.
func TestProfiles(t *testing.T) {
	var f fake
	a, b := f.cell("a", 3, 4), f.cell("b", 5, 6)
	var took time.Duration
	run := b.Run
	b.Run = func(ctx context.Context, d time.Duration) ([]float64, error) {
		took = d
		return run(ctx, d)
	}
	w := Work{Name: "w", Metrics: []Metric{{"bulk, of (it)", "Gbit/s", 0}, speed}, Cells: []Cell{a, b}, Profiled: []string{"b"}}
	n, remarks, dir := look1(t, w, recorder(seen(fewest), nil, true))
	require.Empty(t, remarks)
	require.Equal(t, 1, n)
	require.Equal(t, []string{"b"}, f.done)
	require.GreaterOrEqual(t, took, settle+looking)
	text, err := os.ReadFile(filepath.Join(dir, "bulk_of_it.b.folded"))
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("kernel;swapper;do_idle %d\n", fewest), string(text))
}

// What is short by nature has something longer to be looked at.
func TestProfileOfLongRun(t *testing.T) {
	var f fake
	long := false
	w := Work{
		Metrics: []Metric{speed}, Cells: []Cell{f.cell("a", 1)}, Profiled: []string{"a"},
		Long: func(context.Context, way, time.Duration) ([]float64, error) {
			long = true
			return []float64{1}, nil
		},
	}
	n, remarks, _ := look1(t, w, recorder(seen(fewest), nil, true))
	require.Empty(t, remarks)
	require.Equal(t, 1, n)
	require.True(t, long)
	require.Empty(t, f.done)
}

// Others that ran meanwhile are said.
func TestProfileOfABusyMachine(t *testing.T) {
	var f fake
	w := Work{Metrics: []Metric{speed}, Cells: []Cell{f.cell("a", 1)}, Profiled: []string{"a"}}
	n, remarks, _ := look1(t, w, recorder(seen(fewest)+strings.Repeat("compile 9\n\tffff main (c)\n\n", fewest), nil, true))
	require.Equal(t, 1, n)
	require.Equal(t, []string{"profile of speed, a: the machine had something else to do for 50 % of its time"}, remarks)
}

// A run that perf has missed is done again.
func TestProfileMissed(t *testing.T) {
	var f fake
	w := Work{Metrics: []Metric{speed}, Cells: []Cell{f.cell("a", 1)}, Profiled: []string{"a"}}
	looks := 0
	n, remarks, _ := look1(t, w, func(_ context.Context, _ string, _ time.Duration, done <-chan struct{}) (string, error) {
		<-done
		looks++
		if looks < tries {
			return "", nil
		}
		return seen(fewest), nil
	})
	require.Equal(t, 1, n, remarks)
	require.Equal(t, tries, looks)
	require.Len(t, f.done, tries)
}

// Whatever goes wrong is a remark, and nothing waits for what does not come.
func TestProfilesThatComeToNothing(t *testing.T) {
	var f fake
	good := f.cell("a", 1)
	bad := good
	bad.Run = func(context.Context, time.Duration) ([]float64, error) { return nil, errors.New("no luck") }
	other := good
	other.Begin = func(context.Context) (func(context.Context) error, error) {
		return func(context.Context) error { return errOtherWay }, nil
	}
	gone := good
	gone.Begin = func(context.Context) (func(context.Context) error, error) { return nil, errors.New("no gateway") }
	for _, c := range []struct {
		cell   Cell
		record func(context.Context, string, time.Duration, <-chan struct{}) (string, error)
		want   string
	}{
		{bad, recorder(seen(fewest), nil, true), "no luck"},
		{other, recorder(seen(fewest), nil, true), errOtherWay.Error()},
		{gone, recorder(seen(fewest), nil, true), "no gateway"},
		{f.cell("a"), recorder(seen(fewest), nil, true), "0 numbers instead of 1"},
		{good, recorder("", errors.New("not allowed"), false), "not allowed"},
		{good, recorder(seen(fewest-1), nil, false), "only 199 samples"},
		{good, recorder("nonsense\n", nil, false), "not the output of perf script"},
	} {
		n, remarks, _ := look1(t, Work{Metrics: []Metric{speed}, Cells: []Cell{c.cell}, Profiled: []string{"a"}}, c.record)
		require.Zero(t, n)
		require.Len(t, remarks, 1)
		require.Contains(t, remarks[0], "no profile of speed, a: ")
		require.Contains(t, remarks[0], c.want)
	}
}

func TestProfilesEndWithTheContext(t *testing.T) {
	t.Setenv("PATH", fakePerf(t)+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithCancelCause(t.Context())
	var f fake
	c := f.cell("a", 1)
	c.Run = func(context.Context, time.Duration) ([]float64, error) {
		cancel(errors.New("enough"))
		return []float64{1}, nil
	}
	r := runner{limit: 10 * time.Second, log: &strings.Builder{}}
	p := profiler{runner: &r, directory: t.TempDir(), record: recorder(seen(fewest), nil, true)}
	list, remarks, err := p.all(ctx, []Work{{Metrics: []Metric{speed}, Cells: []Cell{c, c}, Profiled: []string{"a"}}})
	require.NoError(t, err)
	require.Empty(t, list)
	require.Equal(t, []string{"no more profiles: enough"}, remarks)
}

func TestProfilesWithoutPerf(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, remarks, err := (&profiler{directory: "/dev/null/none"}).all(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"no profiles: perf is not installed"}, remarks)
	t.Setenv("PATH", fakePerf(t))
	_, _, err = (&profiler{directory: "/dev/null/none"}).all(t.Context(), nil)
	require.Error(t, err)
}

// Profiles of everything fit into the time that the budget leaves.
func TestProfilesTakeLittle(t *testing.T) {
	ways := map[string]way{}
	for _, name := range []string{"tcp", Shm, Latency, Soft1500, Soft9000, RC1500, RC9000, Auto, Attached, Released, Plain} {
		ways[name] = way{variant: name}
	}
	var list []Work
	var names []string
	for _, c := range works(ways) {
		list, names = append(list, c.work), append(names, c.work.Name)
		for _, v := range c.work.Profiled {
			require.True(t, slices.ContainsFunc(c.work.Cells, func(x Cell) bool { return x.Variant == v }), "%s has no %s", c.work.Name, v)
		}
	}
	d := (&profiler{}).takes(list)
	t.Log(d)
	require.Positive(t, d)
	require.Less(t, d, 4*time.Minute)
	for name := range sampled {
		require.Contains(t, names, name)
	}
}

// A profile of whole gateways: their time is there, and what it is.
func TestProfileOfGateways(t *testing.T) {
	testnet.Require(t, "root", "bpf")
	if out, err := exec.Command(profile.Program, "record", "-q", "-a", "-e", "cpu-clock", "-o", "/dev/null", "--", "true").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: perf cannot look at this machine: %v: %s", err, out)
	}
	dir := t.TempDir()
	var log strings.Builder
	r, err := Run(t.Context(), Options{
		Executable: program(t), Rounds: 1, Duration: 200 * time.Millisecond, Log: &log, Command: "tiny",
		Only: []string{"connections"}, Variants: []string{Shm}, Profile: dir,
	})
	require.NoError(t, err, log.String())
	require.Len(t, r.Profiles, 1, "%v", r.Notes)
	p := r.Profiles[0]
	require.Equal(t, Shm, p.Variant)
	require.Equal(t, rate8.Name, p.Work)
	require.Positive(t, p.Value)
	sum := map[string]float64{}
	total := 0.0
	for _, part := range p.Parts {
		total += part.Share
		for role, share := range part.By {
			sum[role] += share
		}
	}
	require.InDelta(t, 1, total, 1e-6)
	for _, role := range []profile.Role{profile.Client, profile.ClientGateway, profile.ServerGateway, profile.Server} {
		require.Positive(t, sum[string(role)], "%v", sum)
	}
	require.Less(t, p.Share(string(profile.Other)), 0.1, "%v", p.Parts)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 1)
}
