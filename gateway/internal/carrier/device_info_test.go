package carrier

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
)

func TestSnakeCase(t *testing.T) {
	for in, want := range map[string]string{
		"Peers": "peers", "BellsSent": "bells_sent", "QPs": "qps", "ICRCErrors": "icrc_errors",
		"NAKsSent": "naks_sent", "RNR": "rnr", "SentRNRNaks": "sent_rnr_naks", "PeersUp": "peers_up",
		"SentRNRNAKs": "sent_rnr_naks", "SentCNPs": "sent_cnps", "SequenceNAKs": "sequence_naks", "TxPackets": "tx_packets",
	} {
		require.Equal(t, want, snakeCase(in))
	}
}

// Only what ends a queue pair is counted: no success, and no flush after the error.
func TestCompletionErrors(t *testing.T) {
	e := &Env{}
	require.Empty(t, e.CQErrors())
	for _, status := range []verbs.WCStatus{verbs.WCSuccess, verbs.WCRetryExcErr, verbs.WCWRFlushErr, verbs.WCRetryExcErr, verbs.WCRemAccessErr} {
		e.failed.note(negotiate.CarrierSoft, status)
	}
	e.failed.note(negotiate.CarrierSHM, verbs.WCRetryExcErr)
	require.ElementsMatch(t, []report.CQErrorCount{
		{Carrier: report.CarrierSoft, Status: "retry_exc_err", Count: 2},
		{Carrier: report.CarrierSoft, Status: "rem_access_err", Count: 1},
		{Carrier: report.CarrierShm, Status: "retry_exc_err", Count: 1},
	}, e.CQErrors())
}
