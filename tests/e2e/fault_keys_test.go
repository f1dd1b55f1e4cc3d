package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/testnet"
	"github.com/smcgw/smcgw/internal/testnet/matrix"
)

const (
	keyOne = "the first key of the test"
	keyTwo = "the second key of the test"
)

// keys writes the key file of a host's gateway and returns the setting for it;
// without keys there is none.
func (w *world) keys(h *testnet.Host, lines ...string) string {
	w.t.Helper()
	if len(lines) == 0 {
		return ""
	}
	path := filepath.Join(w.dir, h.Name+".psk")
	require.NoError(w.t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
	return fmt.Sprintf("security: { psk_file: %s }\n", path)
}

// keyCell is what two gateways have for keys.
type keyCell struct {
	name           string
	client, server []string
	carried        bool
}

var keyCells = []keyCell{
	{"the same", []string{keyOne}, []string{keyOne}, true},
	{"being changed", []string{keyTwo, keyOne}, []string{keyOne, keyTwo}, true},
	{"server has the new one too", []string{keyOne}, []string{keyTwo, keyOne}, true},
	{"different", []string{keyOne}, []string{keyTwo}, false},
	{"client without", nil, []string{keyTwo}, false},
	{"server without", []string{keyOne}, nil, false},
	{"server has only the client's second", []string{keyOne, keyTwo}, []string{keyTwo}, false},
}

// TestFaultKeys: gateways carry for each other when they have a key in common;
// else every connection is native, both know why, and no application notices.
func TestFaultKeys(t *testing.T) {
	n := newTally(t)
	for _, c := range matrix.Cells(t, keyCells, 4) {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) { keyed(t, n, c) })
	}
	require.Zero(t, n.failed())
}

func keyed(t *testing.T, n *tally, c keyCell) {
	w := newWorld(t, testnet.Config{})
	served := w.serve(w.h2)
	w.up(w.h1, settings{Extra: w.keys(w.h1, c.client...)})
	w.up(w.h2, settings{Extra: w.keys(w.h2, c.server...)})
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		to := addr(w.h2, echoPort)
		if c.carried {
			e := w.mustApp(w.h1, "ping", "-count", "100", "-size", "5000", "-to", to)
			n.result(e)
			w.carriedBy(e, w.via)
			return
		}
		n.faults(1)
		first := fallback{w: w, t: t, from: w.h1, to: to, client: remote("auth_failed"), server: local("auth_failed")}
		n.result(first.ping())
		n.result(fallback{w: w, t: t, from: w.h1, to: to, client: local("auth_failed")}.ping()) // remembered
		p, ok := w.gateways[w.h1].peer(hostOf(to), echoPort)
		require.True(t, ok)
		require.Equal(t, "auth_failed", p.Reason)
	})
	e := w.mustApp(w.h1, "churn", "-count", "100", "-parallel", "8", "-to", w.h2.AddrPort4(transferPort).String())
	n.result(e)
	for _, g := range w.gateways {
		require.NotContains(t, g.proc.Output(), keyOne, "a key in the log")
	}
	// The application has seen what it would have seen natively: a server that
	// does not believe a client does not dial for it.
	require.NotContains(t, served.Output(), "reset")
}
