package carrier

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
)

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
