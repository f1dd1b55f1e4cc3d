package suites

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

// TestSuites runs the suites that SMCGW_SUITES selects, none of which may be skipped then.
func TestSuites(t *testing.T) {
	if os.Getenv("SMCGW_SUITES") == "" {
		t.Skip("make suites runs it")
	}
	require.Zero(t, os.Geteuid(), "needs root, for namespaces")
	for _, s := range slices.Concat(python, redis, postgresql, web, remote, programs) {
		t.Run(s.name, s.compare)
	}
}

// TestDifferences checks that a result that also occurred natively is no difference, and that a missing one is.
func TestDifferences(t *testing.T) {
	native := []results{{"a": "ok", "b": "ok", "c": "ok"}, {"a": "ok", "b": "FAIL", "c": "ok"}}
	require.Empty(t, differences(native, results{"a": "ok", "b": "FAIL", "c": "ok"}))
	require.Equal(t, map[string]string{
		"a": `natively "ok", with the library "FAIL"`,
		"c": `natively "ok", with the library ""`,
		"d": `natively "", with the library "ok"`,
	}, differences(native, results{"a": "FAIL", "b": "ok", "d": "ok"}))
}
