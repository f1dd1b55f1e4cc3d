package doctor

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
)

// TestDiagnosis: what is ok is left out, causes are counted by reason and side.
func TestDiagnosis(t *testing.T) {
	native := func(reason, by string) admin.ConnInfo {
		return admin.ConnInfo{Reason: reason, DecidedBy: by, End: admin.EndNative}
	}
	d := Diagnose(
		Report{Lines: []Line{{"tun", OK, "there", ""}, {"sysctls", Failure, "timestamps are off", "switch them on"}}},
		[]admin.ConnInfo{
			native("policy", admin.DecidedLocal), native("policy", admin.DecidedRemote), native("no_memory", admin.DecidedRemote),
			native("no_memory", admin.DecidedRemote),
			{Carrier: "rdma-shm", State: "carrying"},
		},
		[]admin.ConnInfo{{End: admin.EndClosed}, {End: admin.EndAborted, Reason: "peer_dead", DecidedBy: admin.DecidedLocal}},
	)
	var text, doc bytes.Buffer
	require.NoError(t, d.Text(&text))
	golden(t, "diagnosis.txt", text.String())
	enc := json.NewEncoder(&doc)
	enc.SetIndent("", " ")
	require.NoError(t, enc.Encode(d))
	golden(t, "diagnosis.json", doc.String())

	text.Reset()
	d = Diagnose(Report{}, nil, nil)
	require.NoError(t, d.Text(&text))
	require.Equal(t, "nothing stands out\n", text.String())
}
