package doctor

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/golden"
)

// TestDiagnosis: what is ok is left out, causes are counted by reason and side.
func TestDiagnosis(t *testing.T) {
	native := func(reason, by string) report.ConnInfo {
		return report.ConnInfo{Reason: reason, DecidedBy: by, End: report.EndNative}
	}
	d := Diagnose(
		Report{Lines: []Line{{"tun", OK, "there", ""}, {"sysctls", Failure, "timestamps are off", "switch them on"}}},
		[]report.ConnInfo{
			native("policy", report.DecidedLocal), native("policy", report.DecidedRemote), native("no_memory", report.DecidedRemote),
			native("no_memory", report.DecidedRemote),
			{Carrier: "rdma-shm", State: "carrying"},
		},
		[]report.ConnInfo{{End: report.EndClosed}, {End: report.EndAborted, Reason: "peer_dead", DecidedBy: report.DecidedLocal}},
	)
	var text, doc bytes.Buffer
	require.NoError(t, d.Text(&text))
	golden.File(t, "diagnosis.txt", text.String())
	enc := json.NewEncoder(&doc)
	enc.SetIndent("", " ")
	require.NoError(t, enc.Encode(d))
	golden.File(t, "diagnosis.json", doc.String())

	text.Reset()
	d = Diagnose(Report{}, nil, nil)
	require.NoError(t, d.Text(&text))
	require.Equal(t, "nothing stands out\n", text.String())
}
