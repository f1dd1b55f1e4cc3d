package bench

import (
	"context"
	"errors"
	"testing"
	"time"

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

// A run that was of another variant does not count, whatever it measured.
func TestVerified(t *testing.T) {
	done := 0
	do := func(context.Context, way, time.Duration) ([]float64, error) {
		done++
		return []float64{1}, nil
	}
	values, err := way{}.verified(t.Context(), do, time.Second)
	require.NoError(t, err)
	require.Equal(t, []float64{1}, values)
	w := way{begin: func(context.Context) (func(context.Context) error, error) {
		return func(context.Context) error { return errOtherWay }, nil
	}}
	_, err = w.verified(t.Context(), do, time.Second)
	require.ErrorIs(t, err, errOtherWay)
	require.Equal(t, 2, done)
	gone := errors.New("no gateway")
	w.begin = func(context.Context) (func(context.Context) error, error) { return nil, gone }
	_, err = w.verified(t.Context(), do, time.Second)
	require.ErrorIs(t, err, gone)
	require.Equal(t, 2, done)
}
