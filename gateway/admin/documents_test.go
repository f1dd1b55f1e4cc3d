package admin

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
)

// TestErrorDocument pins the document that no verb prints; TestEveryJSON in cmd/smcgw pins the others.
func TestErrorDocument(t *testing.T) {
	out, err := json.Marshal(errorDoc{Schema: errorSchema, Error: "not permitted"})
	require.NoError(t, err)
	require.JSONEq(t, `{"schema": "smcgw.error/v1", "error": "not permitted"}`, string(out))
}

func sampleStats() report.Stats {
	return report.Stats{
		Schema: statsSchema, StartedAt: time.Date(2026, 11, 20, 9, 30, 0, 0, time.UTC), Seconds: 12.5,
		Protocols: map[report.Proto]report.ProtoStats{
			report.ProtoTCP: {
				Flows:  map[report.Carrier]report.FlowCount{report.CarrierShm: {Now: 3, Total: 40}, report.CarrierRelay: {Total: 2}},
				Bytes:  map[report.Carrier]report.ByteCount{report.CarrierShm: {Tx: 1 << 20, Rx: 5}},
				Native: map[string]uint64{"peer_no_option": 7, "policy": 1},
			},
			report.ProtoUDP: {
				Flows:  map[report.Carrier]report.FlowCount{report.CarrierSoft: {Now: 1, Total: 4}},
				Bytes:  map[report.Carrier]report.ByteCount{report.CarrierSoft: {Tx: 1000, Rx: 2000}},
				Native: map[string]uint64{"nat": 2},
			},
		},
		Datagrams: report.DatagramStats{
			Sent: map[report.Carrier]uint64{report.CarrierSoft: 10}, Received: map[report.Carrier]uint64{report.CarrierSoft: 20},
			Delivered: 19, Returned: 3, Dropped: map[report.DatagramDrop]uint64{report.DropReassembly: 1},
			Resolution: report.ResolutionStats{Queries: 4, Answers: 3, Refusals: 1, Asked: 5, Answered: 4, Refused: 1, Ignored: 6},
		},
	}.Filled()
}

func TestAdminStats(t *testing.T) {
	a := startAdmin(t, nil)
	st, err := a.client.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, sampleStats(), st)
}
