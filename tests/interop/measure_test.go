package interop

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/comparison"
)

// TestAdapterMeasure compares TCP, adapters and soft between two kernels with smcgw bench, in interleaved rounds, and
// logs the result. An emulated machine has no processor of its own, and rdma_rxe is software: the ratios show what
// the gateway adds on this carrier compared with the other one, not what an adapter does.
func TestAdapterMeasure(t *testing.T) {
	if !thorough() {
		t.Skip("measures: make interop")
	}
	ctx := patience(t, 25*time.Minute)
	p := newAdapterPair(ctx, t)
	for i := range p.guest {
		p.gateway(ctx, t, i, adapterSettings{carriers: "hw, soft", more: "in_process: { between_hosts: on }\n"}, withFlag("--no-guardian")...)
	}
	const token = "measuremeasuremeasuremeasu"
	serve := startIn(t, p.guest[1], guestProgram, "bench", "--serve", "--token", token, "--socket", "/run/admin.sock")
	require.NoError(t, serve.WaitOutput(ctx, "Serving measurements"))
	const rounds = 3
	out, err := p.guest[0].Run(ctx, guestProgram, "bench", "--peer", p.guest[1].Addr4.String(), "--token", token,
		"--rounds", fmt.Sprint(rounds), "--duration", "2s", "--json", "--socket", "/run/admin.sock")
	require.NoError(t, err, out)
	var rep comparison.Report
	require.NoError(t, json.Unmarshal([]byte(lastLine(out)), &rep), out)
	var text strings.Builder
	require.NoError(t, rep.Text(&text))
	t.Log(text.String())
	for _, s := range rep.Series {
		if strings.HasPrefix(s.Work, "upload") || strings.HasPrefix(s.Work, "download") {
			require.Len(t, s.Values, rounds, "%s by %s: %s", s.Work, s.Variant, s.Note)
		}
	}
	p.end(ctx, t)
}
