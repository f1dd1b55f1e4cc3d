package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
)

// TestRun checks that, under rules that pass everything, smcgw run carries and reports all connections of one
// command, and that those of others stay native, before and after.
func TestRun(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	g1 := w.up(w.h1, settings{Policy: "\n  - { name: none, action: pass }\n"})
	w.up(w.h2, settings{})
	to := w.h2.AddrPort4(echoPort)
	command := fmt.Sprintf("exec 3<>/dev/tcp/%s/%d; exec 3>&-; exec 4<>/dev/tcp/%s/%d; exec 4>&-; exit 3", to.Addr(), to.Port(), to.Addr(), to.Port())
	native := func() {
		_, err := w.h1.Run(t.Context(), "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/%d", to.Addr(), to.Port()))
		require.NoError(t, err)
	}
	native()
	path := filepath.Join(t.TempDir(), "report.json")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var text []byte
	var doc struct {
		Schema string
		Status int
		Conns  []report.ConnInfo
	}
	var before uint64
	w.inTime(func() bool {
		before = g1.status().FlowsTotal[w.via]
		return w.noneLate(func() {
			out, err := w.h1.Run(ctx, binary, "run", "--json", "--report", path, "--socket", g1.socket, "--", "bash", "-c", command)
			require.ErrorContains(t, err, "exit status 3", out)
			text, err = os.ReadFile(path)
			require.NoError(t, err, out)
			doc.Conns = nil
			require.NoError(t, json.Unmarshal(text, &doc))
		})
	})
	require.Equal(t, "smcgw.run/v1", doc.Schema)
	require.Equal(t, 3, doc.Status)
	require.Len(t, doc.Conns, 2)
	for _, c := range doc.Conns {
		require.Equal(t, to, c.Remote)
		require.Equal(t, w.via, c.Carrier, "%s", text)
		require.Equal(t, report.EndClosed, c.End)
	}
	native()
	require.EqualValues(t, 2, g1.status().FlowsTotal[w.via]-before)
	require.Eventually(t, func() bool {
		n := 0
		for _, c := range g1.conns("--all") {
			if c.Remote == to && c.Reason == "policy" {
				n++
			}
		}
		return n == 2
	}, 30*time.Second, 50*time.Millisecond)
}
