package faults

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseDebug(t *testing.T) {
	k, err := parseDebug([]string{"PATH=/bin", "SMCGW_DEBUG_PANIC=carrying:7000:2", "SMCGW_DEBUG_HOLD=offered:7000,negotiating:7001", "SMCGW_DEBUG_X="})
	require.NoError(t, err)
	require.Equal(t, []string{"SMCGW_DEBUG_HOLD=offered:7000,negotiating:7001", "SMCGW_DEBUG_PANIC=carrying:7000:2"}, k.List())

	require.False(t, k.panics.meet(Carrying, 40000), "another port")
	require.False(t, k.panics.meet(Closing, 7000), "another step")
	require.True(t, k.panics.meet(Carrying, 7000))
	require.True(t, k.panics.meet(Carrying, 7000))
	require.False(t, k.panics.meet(Carrying, 7000), "used up")
	for range 3 {
		require.True(t, k.hold.meet(Negotiating, 7001), "without a count: all")
		require.True(t, k.hold.meet(Offered, 7000))
	}

	k, err = parseDebug([]string{"PATH=/bin"})
	require.NoError(t, err)
	require.Nil(t, k)
	require.Empty(t, k.List())

	for _, wrong := range []string{
		"SMCGW_DEBUG_PANIK=carrying:1", "SMCGW_DEBUG_PANIC=flying:1", "SMCGW_DEBUG_PANIC=carrying",
		"SMCGW_DEBUG_HOLD=carrying:70000", "SMCGW_DEBUG_HOLD=carrying:1:x", "SMCGW_DEBUG_HOLD=carrying:1:2:3",
		"SMCGW_DEBUG_TAKEOVER=soon",
	} {
		_, err := parseDebug([]string{wrong})
		require.ErrorContains(t, err, wrong)
	}
}

// FuzzParseDebug: what is taken names a known step, and is about a port.
func FuzzParseDebug(f *testing.F) {
	f.Add("carrying:7000:2")
	f.Add("offered:7000,negotiating:7001")
	f.Add("closing:65536")
	f.Fuzz(func(t *testing.T, value string) {
		k, err := parseDebug([]string{"SMCGW_DEBUG_HOLD=" + value})
		if err != nil || value == "" {
			return
		}
		require.NotEmpty(t, k.hold)
		for _, p := range k.hold {
			require.Contains(t, debugSteps, p.step)
			if p.left != nil {
				require.GreaterOrEqual(t, p.left.Load(), int64(0))
			}
		}
	})
}
