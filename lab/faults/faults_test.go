package faults

import (
	"os"
	"path/filepath"
	"runtime/trace"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	k, err := Parse([]string{"PATH=/bin", "SMCGW_DEBUG_PANIC=carrying:7000:2", "SMCGW_DEBUG_HOLD=offered:7000,negotiating:7001", "SMCGW_DEBUG_X="})
	require.NoError(t, err)
	require.False(t, k.At("carrying", 7001), "another port")
	require.False(t, k.At("closing", 7000), "another step")
	for range 2 {
		require.PanicsWithValue(t, "SMCGW_DEBUG_PANIC at carrying", func() { k.At("carrying", 7000) })
	}
	require.False(t, k.At("carrying", 7000), "used up")
	for range 3 {
		require.True(t, k.At("negotiating", 7001), "without a count: all")
		require.True(t, k.At("offered", 7000))
	}
	require.False(t, k.Takeover("yielded"))

	k, err = Parse([]string{"SMCGW_DEBUG_TAKEOVER=yielded"})
	require.NoError(t, err)
	require.True(t, k.Takeover("yielded"))
	require.False(t, k.Takeover("opened"))
	require.False(t, k.At("offered", 7000))

	k, err = Parse([]string{"PATH=/bin"})
	require.NoError(t, err)
	require.Nil(t, k)

	for _, wrong := range []string{
		"SMCGW_DEBUG_PANIK=carrying:1", "SMCGW_DEBUG_PANIC=flying:1", "SMCGW_DEBUG_PANIC=carrying",
		"SMCGW_DEBUG_HOLD=carrying:70000", "SMCGW_DEBUG_HOLD=carrying:1:x", "SMCGW_DEBUG_HOLD=carrying:1:-1", "SMCGW_DEBUG_HOLD=carrying:1:2:3", "SMCGW_DEBUG_HOLD=carrying:1,",
		"SMCGW_DEBUG_TAKEOVER=soon", "SMCGW_DEBUG_TRACE=7000", "SMCGW_DEBUG_TRACE=x:file", "SMCGW_DEBUG_TRACE=7000:",
	} {
		_, err := Parse([]string{wrong})
		require.ErrorContains(t, err, wrong)
	}
}

// TestTrace: from the first step of any connection until one of the port carries.
func TestTrace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace")
	k, err := Parse([]string{"SMCGW_DEBUG_TRACE=7000:" + file})
	require.NoError(t, err)
	require.NoFileExists(t, file)
	require.False(t, k.At("accepted", 7001))
	require.FileExists(t, file)
	require.True(t, trace.IsEnabled())
	k.At("carrying", 7001)
	k.At("accepted", 7000)
	require.True(t, trace.IsEnabled())
	k.At("carrying", 7000)
	require.False(t, trace.IsEnabled())
	k.At("carrying", 7000)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Positive(t, info.Size())
}
