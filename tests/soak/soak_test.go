package main

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

func TestMain(m *testing.M) {
	apps.Init()
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
		out: &out, length: 20 * time.Second, seed: matrix.Seed(t), dir: dir, executable: os.Getenv("SMCGW_BINARY"),
	})
	t.Log(out.String(), total)
	require.NoError(t, err)
	require.Zero(t, total.errors)
	require.Positive(t, total.flows)
	require.Positive(t, total.bytes)
	require.Positive(t, total.faults)
}
