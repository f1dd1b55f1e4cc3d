package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/bench"
	"github.com/smcgw/smcgw/internal/comparison"
)

// serveBench runs bench --serve until the test ends and returns what it printed.
func serveBench(t *testing.T) (listen netip.AddrPort, token string) {
	t.Helper()
	e, _, stderr := testEnv()
	r, w := io.Pipe()
	e.stdout = w
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, e, []string{"bench", "--serve", "--listen", "127.0.0.1:0", "--json", "--socket", filepath.Join(t.TempDir(), "none")})
	}()
	t.Cleanup(func() {
		cancel()
		require.Equal(t, exitOK, <-done, "%s", stderr)
		require.NoError(t, r.Close())
	})
	line, err := bufio.NewReader(r).ReadBytes('\n')
	require.NoError(t, err)
	var doc struct {
		Schema, Token string
		Listen        netip.AddrPort
	}
	require.NoError(t, json.Unmarshal(line, &doc))
	require.Equal(t, benchServeSchema, doc.Schema)
	return doc.Listen, doc.Token
}

func TestBenchBetweenTwoProcesses(t *testing.T) {
	at, token := serveBench(t)
	none := filepath.Join(t.TempDir(), "none")
	args := []string{
		"bench", "--peer", at.String(),
		"--rounds", "1", "--duration", "20ms", "--socket", none,
	}
	e, stdout, stderr := testEnv()
	require.Equal(t, exitOK, run(t.Context(), e, append(args, "--json", "--token", token)), "%s", stderr)
	var r comparison.Report
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &r))
	require.Equal(t, comparison.Schema, r.Schema)
	require.NotContains(t, stdout.String(), token)
	require.Contains(t, stderr.String(), "no gateway on this host")

	e, stdout, stderr = testEnv()
	e.getenv = func(name string) string { return map[string]string{benchTokenVariable: token}[name] }
	require.Equal(t, exitOK, run(t.Context(), e, args), "%s", stderr)
	require.Contains(t, stdout.String(), "ping-pong 64 B, p99.9 (µs, less is better)")
	require.Contains(t, stdout.String(), "nothing but plain TCP was measured")

	e, _, stderr = testEnv()
	require.Equal(t, exitFailed, run(t.Context(), e, append(args, "--token", "aaaaaaaaaaaaaaaaaaaaaaaaaa")))
	require.Contains(t, stderr.String(), "refused by the serving host")
}

// A port that another program has names what to do.
func TestServeWherePortIsTaken(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	e, stdout, stderr := testEnv()
	require.Equal(t, exitFailed, run(t.Context(), e, []string{"bench", "--serve", "--listen", ln.Addr().String(), "--socket", "/nope/sock"}))
	require.Empty(t, stdout.String())
	require.Contains(t, stderr.String(), "address already in use: another bench --serve may run; --listen :PORT takes another port")
}

// What a serving host prints can be typed on the other one.
func TestServingSaysWhatToType(t *testing.T) {
	for at, want := range map[string]string{
		"0.0.0.0:4792": "THIS_HOST", "[::]:5000": "THIS_HOST:5000", "10.0.0.2:4792": "10.0.0.2", "[fd00::2]:4792": "fd00::2", "[fd00::2]:5000": "[fd00::2]:5000",
	} {
		e, stdout, _ := testEnv()
		require.NoError(t, e.sayServing(netip.MustParseAddrPort(at), bench.NewToken()))
		require.Contains(t, stdout.String(), "smcgw bench --peer "+want+" --token ")
		_, _, err := hostPort(want)
		require.NoError(t, err)
	}
}
