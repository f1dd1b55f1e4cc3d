package report

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/negotiate"
)

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
	for name, metric := range map[string]string{
		"peer_no_option":  `smcgw_fallbacks_total{reason="peer_no_option"}`,
		"no_peer":         `smcgw_in_process_native_total{reason="no_peer"}`,
		"peer_unresolved": `smcgw_dgram_native_total{reason="peer_unresolved"}`,
	} {
		c, ok := CodeNamed(name)
		require.True(t, ok)
		require.Equal(t, metric, c.Metric)
	}
}
