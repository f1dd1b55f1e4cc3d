package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// The test itself serves slowPort.
const (
	slowPort   = 7105
	drainPorts = "7000, 7001, 7005, 7105"
)

// TestFaultDrain checks that a draining gateway takes nothing new and serves what it has, that it ends when that has
// ended, at once if there is nothing, and that what is left at the deadline is reset with the reason drained.
func TestFaultDrain(t *testing.T) {
	t.Parallel()
	count := newTally(t)
	w := newServed(t)
	w.up(w.h2, settings{Ports: drainPorts})

	t.Run("nothing to wait for", func(t *testing.T) {
		g := w.up(w.h1, settings{})
		count.faults(1)
		out := g.says("drain")
		require.True(t, strings.HasSuffix(out, "drained, 0 connections left\n"), out)
		require.Empty(t, g.processes(), "it returns when the gateway is gone")
		g.ended(t)
	})

	t.Run("to the last connection", func(t *testing.T) {
		g := w.up(w.h1, settings{})
		held := w.holdCarried(t, g, 4)
		busy, err := w.h1.StartApp("hold", "-size", "30000", "-patience", "1m", "-to", w.h2.AddrPort6(echoPort).String())
		require.NoError(t, err)
		enough, asked := make(chan struct{}), make(chan error, 1)
		go func() { asked <- askUntil(t.Context(), busy, enough) }()
		require.Eventually(t, func() bool { return g.status().Flows[w.via] == 5 }, 30*time.Second, 20*time.Millisecond)
		count.faults(1)
		drain := exec.CommandContext(t.Context(), binary, "drain", "--json", "--timeout", "5m", "--socket", g.socket)
		done := make(chan []byte, 1)
		go func() {
			out, err := drain.CombinedOutput()
			if err != nil {
				out = append(out, err.Error()...)
			}
			done <- out
		}()
		require.Eventually(t, func() bool { return g.status().Draining != nil }, 30*time.Second, 10*time.Millisecond)
		e := w.mustApp(w.h1, "churn", "-count", "40", "-parallel", "4", "-size", "20000", "-to", w.h2.AddrPort4(transferPort).String())
		count.result(e)
		require.Positive(t, g.status().FallbacksTotal["drained"], "new connections are native, and this is why")
		require.Equal(t, 5, g.status().Draining.Flows)
		close(enough)
		require.NoError(t, <-asked)
		count.result(lastPing(t, busy))
		select {
		case out := <-done:
			t.Fatalf("it waits for idle connections: %s", out)
		case <-time.After(300 * time.Millisecond):
		}
		count.result(lastPing(t, held))
		var last report.DrainInfo
		out := <-done
		require.NoError(t, json.Unmarshal(out, &last), "%s", out)
		require.True(t, last.Done)
		require.Zero(t, last.Flows+last.Lingering)
		g.ended(t)
	})

	t.Run("bytes that an application has yet to read", func(t *testing.T) { drainBehindASlowReader(t, w, count) })

	t.Run("one whose configuration takes a restart", func(t *testing.T) {
		w.upDetached(w.h1, settings{})
		g := w.gateways[w.h1]
		held := w.holdCarried(t, g, 2)
		w.write(g, settings{Memory: "512MiB"})
		count.faults(1)
		out := g.says("reload")
		require.Contains(t, out, "a new gateway has taken over")
		st := g.status() // of the new one
		require.Empty(t, st.Degraded)
		require.Equal(t, 2, st.Predecessor.Flows)
		require.NoError(t, held.CloseInput())
		for _, e := range awaitEnded(t, held, 2) {
			require.Empty(t, e.Errno, "%+v", e)
		}
		g.ended(t)
		g.says("drain")
		require.Eventually(t, func() bool { return len(g.processes()) == 0 }, 30*time.Second, 20*time.Millisecond)
	})

	t.Run("one that was replaced, sooner", func(t *testing.T) {
		g := w.up(w.h1, settings{})
		held := w.holdCarried(t, g, 2)
		next := g.upgrade()
		count.faults(1)
		out, err := next.cli("reload", "--replace")
		require.Error(t, err)
		require.Contains(t, out, "a gateway that drains is still there (connections: 2, for ")
		require.Contains(t, out, "smcgw drain --timeout 1s --socket "+g.socket)
		out, err = g.cli("drain", "--timeout", "1s")
		require.Error(t, err)
		require.Contains(t, out, "2 connections reset by the drain")
		for _, e := range awaitEnded(t, held, 2) {
			require.Equal(t, "ECONNRESET", e.Errno, "%+v", e)
		}
		require.NoError(t, held.CloseInput())
		g.ended(t)
		next.says("drain")
		next.ended(t)
	})

	t.Run("to the deadline", func(t *testing.T) {
		g := w.up(w.h1, settings{})
		held := w.holdCarried(t, g, 4)
		count.faults(1)
		out, err := g.cli("drain", "--timeout", "2s")
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "%s", out)
		require.Equal(t, 1, exit.ExitCode())
		require.Regexp(t, `4 connections left, reset in [12](\.\d)?s\n`, out)
		require.Contains(t, out, "4 connections reset by the drain")
		for _, e := range awaitEnded(t, held, 4) {
			require.Equal(t, "ECONNRESET", e.Errno, "%+v", e)
		}
		require.NoError(t, held.CloseInput())
		g.ended(t)
		w.gateways[w.h2].closedConn(func(c report.ConnInfo) bool { return c.Reason == "drained" && c.DecidedBy == report.DecidedRemote })
		count.result(w.mustApp(w.h1, "ping", "-to", w.h2.AddrPort4(echoPort).String()))
	})
	require.Zero(t, count.failed())
}

// askUntil makes a holding client exchange bytes on its connection again and again.
func askUntil(ctx context.Context, p *testnet.Proc, enough <-chan struct{}) error {
	for {
		e, err := p.Ask(ctx, "ping")
		if err != nil {
			return err
		}
		if e.OK != 1 {
			return fmt.Errorf("%+v", e) //nolint:err113 // a report
		}
		select {
		case <-enough:
			return nil
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// drainBehindASlowReader drains a gateway that has no more work with a connection whose last bytes the kernel keeps
// for the application: they still need the gateway.
func drainBehindASlowReader(t *testing.T, w *world, count *tally) {
	const size = 1 << 20
	g := w.up(w.h1, settings{Ports: drainPorts})
	ln, err := w.h2.Listen("tcp", w.h2.AddrPort4(slowPort).String())
	require.NoError(t, err)
	defer ln.Close()
	p := w.carriedPair(t, ln, w.h2.AddrPort4(slowPort))
	defer p.c.Close()
	data := make([]byte, size)
	pattern(data, 0)
	sent := make(chan error, 1)
	go func() {
		_, err := p.s.Write(data)
		sent <- errors.Join(err, p.s.Close())
	}()
	require.NoError(t, p.c.CloseWrite())
	require.NoError(t, <-sent)
	count.faults(1)
	done := make(chan error, 1)
	go func() { _, err := g.cli("drain", "--timeout", "1m"); done <- err }()
	select {
	case err := <-done:
		t.Fatalf("it goes before the application has its bytes: %v", err)
	case <-time.After(time.Second):
	}
	got, err := io.ReadAll(p.c)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got), "%d bytes of %d", len(got), len(data))
	count.add(1, int64(len(got)), 0)
	require.NoError(t, p.c.Close())
	require.NoError(t, <-done)
	g.ended(t)
}
