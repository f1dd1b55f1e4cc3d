package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/bench/comparison"
	"github.com/smcgw/smcgw/lab/bench/paper"
	"github.com/smcgw/smcgw/lab/bench/profile"
)

func profiledReport() *paper.Report {
	part := func(item profile.Item, share float64) paper.Part {
		return paper.Part{Item: string(item), Share: share, By: map[string]float64{string(profile.Client): share}}
	}
	return &paper.Report{
		Report: comparison.Report{
			Machine: comparison.Machine{CongestionControl: "bbr", CPUs: 2},
			Series:  []comparison.Series{{Work: "bulk, 1 stream", Variant: comparison.TCP, Unit: "Gbit/s", Values: []float64{1}}},
		},
		Profiles: []paper.Profile{{Work: "bulk, 1 stream", Variant: "soft1500", Value: 16, Unit: "Gbit/s", Samples: 1000, Parts: []paper.Part{
			part(profile.Checksum, 0.4), part(profile.Idle, 0.3), part(profile.TCP, 0.15), part(profile.Copy, 0.1), part(profile.Timers, 0.05),
		}}},
	}
}

// The largest three are named, with whose they are, and no others.
func TestProfiles(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, profiles(&b, profiledReport()))
	text := b.String()
	for _, want := range []string{
		"### Where the processor time goes", "| ICRC | 40.0 |", "| busy | 70.0 (0.7 s/GB) |",
		"- `soft1500`, 16 Gbit/s: ICRC 40.0 %, 0.4 s/GB (client 40.0); TCP 15.0 %, 0.15 s/GB (client 15.0); copies to and from sockets 10.0 %,",
	} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "timers and interrupts 5")
	b.Reset()
	require.NoError(t, profiles(&b, &paper.Report{}))
	require.Empty(t, b.String())
}

// Profiles of several reports are together on the page.
func TestProfilesOnPage(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "BENCHMARKS.md")
	require.NoError(t, os.WriteFile(name, []byte(begin+end), 0o644))
	other := profiledReport()
	other.Profiles[0].Variant = "shm"
	require.NoError(t, run(name, dir, []string{save(t, dir, "a.json", profiledReport()), save(t, dir, "b.json", other)}))
	raw := filepath.Join(dir, day(profiledReport())+".md")
	require.Contains(t, readText(t, raw), "| item | soft1500 | shm |")
}

func TestWhose(t *testing.T) {
	require.Equal(t, "client 10.0, server 20.0", whose(map[string]float64{"server": 0.2, "client": 0.1, "kernel": 0.0001}))
	require.Equal(t, "kernel", whose(map[string]float64{"kernel": 0.0001}))
}
