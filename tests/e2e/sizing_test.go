package e2e

import (
	"context"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// sizingPage says how many idle connections one peer may have.
const sizingPage = "../../docs/OPERATIONS.md"

// TestIdleOfOnePeer checks that with the default limits one peer may have as many idle connections over soft as the
// documentation says, that further ones are native with no_memory, and that status and peers report what they use.
func TestIdleOfOnePeer(t *testing.T) {
	w := newWorld(t, testnet.Config{})
	w.via = report.CarrierSoft
	w.serve(w.h2)
	s := settings{Carriers: "soft"}
	g1, _ := w.upBoth(s)
	page, err := os.ReadFile(sizingPage)
	require.NoError(t, err)
	row := regexp.MustCompile(`for ([0-9]+) idle connections over soft`).FindSubmatch(page)
	require.NotNil(t, row, sizingPage)
	most, err := strconv.Atoi(string(row[1]))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), slowed(5*time.Minute))
	defer cancel()
	for try := 0; ; try++ {
		late := w.late()
		p, err := w.h1.StartApp("hold", "-count", itoa(most+most/5), "-size", "512", "-to", w.h2.AddrPort4(echoPort).String())
		require.NoError(t, err)
		e, err := p.Ask(ctx, "connect")
		require.NoError(t, err)
		require.Zero(t, e.Failed)
		if try == lateTries || w.late()-late <= uint64(most/10) { // there are more than fit
			break
		}
		leaves(t, p)
		w.quiet(t)
		w.flush()
	}
	st := g1.status()
	require.InEpsilon(t, most, st.Flows[report.CarrierSoft], 0.05)
	require.Positive(t, st.FallbacksTotal["no_memory"])
	share := st.Memory.LimitBytes / 2
	require.InEpsilon(t, share, st.Memory.ReservedBytes, 0.05)
	peers, err := g1.cli("peers", "--no-header")
	require.NoError(t, err)
	require.Regexp(t, `(?m)^10\.77\.0\.2 +- +capable .* 5(0[0-9]|1[0-2])(\.[0-9]+)?MiB +rdma-soft$`, peers)
}
