package main

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/tests/inprocess/world"
)

func TestMain(m *testing.M) {
	apps.Init()
	world.Init()
	os.Exit(leak.Main(m))
}

// TestSoak runs a short soak with the seed of the run.
func TestSoak(t *testing.T) {
	testnet.Require(t, "root", "bpf", "redis-server", "redis-benchmark", "iperf3")
	dir, err := os.MkdirTemp("", "smcgw") //nolint:usetesting // short: there are sockets in it
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var out bytes.Buffer
	total, err := run(t.Context(), options{
		out: &out, length: 20 * time.Second, seed: matrix.Seed(t), workers: 8, dir: dir, executable: os.Getenv("SMCGW_BINARY"),
	})
	t.Log(out.String(), total)
	require.NoError(t, err)
	require.Zero(t, total.errors)
	require.Positive(t, total.flows)
	require.Positive(t, total.bytes)
	require.Positive(t, total.faults)

	line := regexp.MustCompile(`(?m)^{"missed".*$`).Find(out.Bytes())
	var ends pasts
	require.NoError(t, json.Unmarshal(line, &ends), "%s", line)
	require.Equal(t, ends.Late, ends.Missed)
	for _, host := range []string{"a1", "a2", "b1"} {
		require.NotEmpty(t, ends.Hosts[host], "how connections ended at %s", host)
	}
}

// TestInProcess runs what a soak runs beside its load, for two seconds. TestSoak leaves it out, since tests/inprocess
// runs it for a minute.
func TestInProcess(t *testing.T) {
	stress := world.Share("stress")
	t.Cleanup(func() { require.NoError(t, stress.Close()) })
	var out bytes.Buffer
	s := &soak{inprocess: stress.For(t), options: options{out: &out, seed: matrix.Seed(t)}, ledger: &ledger{out: &out, start: time.Now()}, life: t.Context()}
	s.inProcess(2 * time.Second)
	total := s.ledger.sum()
	for length := 4 * time.Second; total.errors == 0 && total.faults == 0 && length < time.Minute; length *= 2 { // on a slow machine
		s.inProcess(length)
		total = s.ledger.sum()
	}
	require.Zero(t, total.errors, out.String())
	require.Positive(t, total.flows)
	require.Positive(t, total.bytes)
	require.Positive(t, total.faults)
}
