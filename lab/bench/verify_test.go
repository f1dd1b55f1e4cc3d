package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
)

func TestClaims(t *testing.T) {
	status := func(shm, relay, optionless uint64) report.Status {
		return report.Status{
			FlowsTotal:     map[report.Carrier]uint64{report.CarrierShm: shm, report.CarrierRelay: relay},
			FallbacksTotal: map[string]uint64{"peer_no_option": optionless},
		}
	}
	before := status(5, 1, 2)
	shm, native := only(report.CarrierShm), claim{reasons: []string{"peer_no_option"}}
	require.NoError(t, shm.verify(before, status(7, 1, 2)))
	require.ErrorContains(t, shm.verify(before, status(5, 1, 2)), "none was counted")
	require.ErrorContains(t, shm.verify(before, status(7, 2, 2)), "1 by relay")
	require.ErrorContains(t, shm.verify(before, status(7, 1, 4)), "2 native, peer_no_option")
	require.NoError(t, native.verify(before, status(5, 1, 9)))
	require.NoError(t, native.verify(before, before), "cached destinations need not be counted")
	require.ErrorIs(t, native.verify(before, status(6, 1, 9)), errOtherWay)
	require.ErrorIs(t, claim{}.verify(report.Status{}, status(0, 0, 1)), errOtherWay)
}
