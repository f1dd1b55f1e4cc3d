package admin

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/golden"
)

// TestDocumentsAreStable pins the JSON that scripts read: a document may gain
// fields within a version, and loses or changes none.
func TestDocumentsAreStable(t *testing.T) {
	version := report.VersionInfo{Schema: versionSchema, Version: "1.2.3", Go: "go1.26", OS: "linux", Arch: "amd64", Kernel: "6.18", Daemon: "1.2.2"}
	for name, doc := range map[string]any{
		"status.golden":  sampleStatus(),
		"stats.golden":   sampleStats(),
		"conns.golden":   ConnList{Schema: connsSchema, Conns: sampleConns()},
		"peers.golden":   PeerList{Schema: peersSchema, Peers: samplePeers()},
		"policy.golden":  samplePolicy(),
		"devices.golden": sampleDeviceList(),
		"version.golden": version,
		"event.golden":   sampleEvent(),
		"result.golden":  Result{Schema: ResultSchema, Verb: "peers flush", Message: "2 remembered peers forgotten", Count: 2},
		"error.golden":   errorDoc{Schema: errorSchema, Error: "not permitted for this user"},
	} {
		out, err := json.MarshalIndent(doc, "", "  ")
		require.NoError(t, err)
		golden.File(t, name, string(out)+"\n")
	}
}
