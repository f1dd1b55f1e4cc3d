package bench

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/comparison"
)

// fakePerf is a program of that name that runs a script of the shell.
func fakePerf(t *testing.T, script string) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, perf), []byte("#!/bin/sh\n"+script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func profilerOf(t *testing.T, do run, variants ...string) *profiler {
	p := &profiler{directory: filepath.Join(t.TempDir(), "new", "directory"), log: io.Discard}
	j := job{work: work{name: "w", load: load{do: do, lead: time.Second}, profiled: true}}
	for _, v := range variants {
		j.by = append(j.by, way{variant: v})
	}
	p.jobs = []job{j, {work: work{name: "other"}, by: j.by}}
	return p
}

// Only the ways that say something are looked at, for long enough, and what perf says is kept.
func TestProfile(t *testing.T) {
	fakePerf(t, `case $1 in record) exit 0;; report) echo "table of $3";; esac`)
	var took []time.Duration
	p := profilerOf(t, func(_ context.Context, _ way, d time.Duration) ([]float64, error) {
		took = append(took, d)
		return nil, nil
	}, comparison.TCP, Shm, Released)
	require.Equal(t, 2*(time.Second+lasting+overhead), p.takes())
	remarks, err := p.all(t.Context())
	require.NoError(t, err)
	require.Empty(t, remarks)
	require.Equal(t, []time.Duration{lasting, lasting}, took)
	files, err := os.ReadDir(p.directory)
	require.NoError(t, err)
	require.Len(t, files, 2)
	b, err := os.ReadFile(filepath.Join(p.directory, "w.shm.txt"))
	require.NoError(t, err)
	require.Equal(t, "table of "+filepath.Join(p.directory, "w.shm.data")+"\n", string(b))
}

// What fails is said, and no error.
func TestProfileFails(t *testing.T) {
	fakePerf(t, `echo "no permission" >&2; exit 1`)
	p := profilerOf(t, func(context.Context, way, time.Duration) ([]float64, error) { return nil, errors.New("no luck") }, Shm)
	remarks, err := p.all(t.Context())
	require.NoError(t, err)
	require.Len(t, remarks, 1)
	for _, want := range []string{"no profile of w, shm", "no permission", "no luck"} {
		require.Contains(t, remarks[0], want)
	}
	t.Setenv("PATH", t.TempDir())
	remarks, err = p.all(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"no profiles: perf is not installed"}, remarks)
}
