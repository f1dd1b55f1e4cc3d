package admin

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/negotiate"
)

// TestDocumentsAreStable pins the JSON that scripts read: a document may gain
// fields within a version, and loses or changes none.
func TestDocumentsAreStable(t *testing.T) {
	version := VersionInfo{Schema: versionSchema, Version: "1.2.3", Go: "go1.26", OS: "linux", Arch: "amd64", Kernel: "6.18", Daemon: "1.2.2"}
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
		golden(t, name, append(out, '\n'))
	}
}

func TestDocumentsReadBack(t *testing.T) {
	var conns ConnList
	requireReadsBack(t, ConnList{Schema: connsSchema, Conns: sampleConns()}, &conns)
	var st Status
	requireReadsBack(t, sampleStatus(), &st)
	var stats Stats
	requireReadsBack(t, sampleStats(), &stats)
	var devices DeviceList
	requireReadsBack(t, sampleDeviceList(), &devices)
	var policy PolicyReport
	requireReadsBack(t, samplePolicy(), &policy)
	var peers PeerList
	requireReadsBack(t, PeerList{Schema: peersSchema, Peers: samplePeers()}, &peers)
}

func requireReadsBack[T any](t *testing.T, doc T, into *T) {
	t.Helper()
	out, err := json.Marshal(doc)
	require.NoError(t, err)
	dec := json.NewDecoder(bytes.NewReader(out))
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(into))
	require.Equal(t, doc, *into)
}

func TestEveryReasonIsExplained(t *testing.T) {
	list := Codes()
	require.Equal(t, codesSchema, list.Schema)
	require.Len(t, list.Codes, len(negotiate.Reasons())+len(inProcessCodes())+3)
	for _, c := range list.Codes {
		require.NotEmpty(t, c.Meaning, c.Name)
		require.NotEmpty(t, c.Fix, c.Name)
		got, ok := CodeNamed(c.Name)
		require.True(t, ok)
		require.Equal(t, c, got)
	}
	_, ok := CodeNamed("no_such_reason")
	require.False(t, ok)
	_, ok = CodeNamed(GuardTripped)
	require.True(t, ok)
	c, ok := CodeNamed("peer_no_option")
	require.True(t, ok)
	require.Equal(t, 20, c.Code)
	require.Equal(t, `smcgw_fallbacks_total{reason="peer_no_option"}`, c.Metric)
}
