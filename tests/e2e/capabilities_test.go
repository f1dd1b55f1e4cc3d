package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/testnet"
)

// TestCapabilities runs both gateways with the capabilities that
// docs/OPERATIONS.md "What it needs" lists, and no other.
func TestCapabilities(t *testing.T) {
	testnet.Require(t, "root", "setpriv")
	w := newWorld(t, testnet.Config{})
	w.serve(w.h2)
	confined := filepath.Join(t.TempDir(), "smcgw")
	require.NoError(t, os.WriteFile(confined, fmt.Appendf(nil,
		"#!/bin/sh\nexec setpriv --bounding-set -all,+net_admin,+bpf,+perfmon %s \"$@\"\n", binary), 0o700))
	whole := binary
	binary = confined
	t.Cleanup(func() { binary = whole })
	g := w.up(w.h1, settings{})
	w.up(w.h2, settings{})
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		e := w.mustApp(w.h1, "ping", "-count", "3", "-to", addr(w.h2, echoPort))
		w.carriedBy(e, w.via)
	})
	g.stop()
}
