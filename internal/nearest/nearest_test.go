package nearest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestName(t *testing.T) {
	verbs := []string{"stats", "status", "conns", "peers", "devices", "max_flows", "no-header"}
	for given, want := range map[string]string{
		"statsu": "status", "statu": "status", "stat": "stats", "cons": "conns", "conn": "conns", "PEERS": "peers", "device": "devices",
		"max-flows": "max_flows", "max_flow": "max_flows", "no_header": "no-header",
		"": "", "nonsense": "", "x": "", "reset": "", strings.Repeat("status", 20): "",
	} {
		require.Equal(t, want, Name(given, verbs), given)
	}
	require.Empty(t, Name("x", nil))
}

// Distances are a metric, and swapped neighbours count once.
func TestDistance(t *testing.T) {
	require.Equal(t, 1, distance("shm", "smh"))
	require.Equal(t, 3, distance("kitten", "sitting"))
	name := rapid.StringMatching(`[abc]{0,8}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		d := distance(a, b)
		require.Equal(t, d, distance(b, a))
		require.Equal(t, a == b, d == 0)
		require.LessOrEqual(t, d, max(len(a), len(b)))
	})
}
