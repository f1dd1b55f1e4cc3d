package testnet

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/leak"
)

func TestMain(m *testing.M) {
	apps.Init()
	os.Exit(leak.Main(m))
}

func patience(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func start(t *testing.T, cfg Config) (n *Network, h1, h2 *Host) {
	t.Helper()
	n = Start(t, cfg)
	return n, n.Host("h1"), n.Host("h2")
}

func startApp(t *testing.T, h *Host, args ...string) *Proc {
	t.Helper()
	p, err := h.StartApp(args...)
	require.NoError(t, err)
	return p
}

func runApp(t *testing.T, h *Host, args ...string) apps.Event {
	t.Helper()
	e, err := h.RunApp(patience(t, 90*time.Second), args...)
	require.NoError(t, err)
	return e
}

func boxStats(t *testing.T, n *Network) BoxStats {
	t.Helper()
	s, err := n.BoxStats()
	require.NoError(t, err)
	require.Zero(t, s.Errors)
	return s
}
