package suites

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

// TestSuites runs what SMCGW_SUITES asks for. Nothing skips then.
func TestSuites(t *testing.T) {
	if os.Getenv("SMCGW_SUITES") == "" {
		t.Skip("make suites runs it")
	}
	require.Zero(t, os.Geteuid(), "needs root, for namespaces")
	for _, s := range slices.Concat(python, redis, postgresql, web, remote, programs) {
		t.Run(s.name, s.compare)
	}
}

// TestDifferences: a result that the test has had natively is no difference, one that is missing is.
func TestDifferences(t *testing.T) {
	native := []results{{"a": "ok", "b": "ok", "c": "ok"}, {"a": "ok", "b": "FAIL", "c": "ok"}}
	require.Empty(t, differences(native, results{"a": "ok", "b": "FAIL", "c": "ok"}))
	require.Equal(t, map[string]string{
		"a": `natively "ok", with the library "FAIL"`,
		"c": `natively "ok", with the library ""`,
		"d": `natively "", with the library "ok"`,
	}, differences(native, results{"a": "FAIL", "b": "ok", "d": "ok"}))
}
