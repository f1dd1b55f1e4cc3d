package suggest

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

// TestSuggestionIsAConfiguration: whatever was seen, check accepts what is proposed, each
// rule is about one service, and nothing on the never-list is.
func TestSuggestionIsAConfiguration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "smcgw.yaml")
	rapid.Check(t, func(t *rapid.T) {
		p := admin.PolicyReport{Observed: rapid.SliceOfN(rapid.Custom(drawObserved), 0, 80).Draw(t, "observed")}
		text, rules := Configuration(&p, "10%")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		f, err := config.Load(path)
		require.NoError(t, err, "%s", text)
		require.Equal(t, config.ModeObserve, f.Config.Mode)
		require.Equal(t, config.AllShare/10, f.Config.Rollout.Percent)
		require.Len(t, f.Config.Policy, rules)
		for _, r := range f.Config.Policy {
			require.Len(t, r.Match.Ports, 1)
			require.NotContains(t, f.Config.NeverPorts(), r.Match.Ports[0].First())
			require.NotEqual(t, config.DirectionBoth, r.Match.Direction)
		}
	})
}

// Where nothing was seen the proposal says so.
func TestNothingToSuggest(t *testing.T) {
	text, rules := Configuration(&admin.PolicyReport{}, "10%")
	require.Zero(t, rules)
	require.Contains(t, text, "policy: []\n# Nothing to propose: no connection has ended in the mode observe")
}

func drawObserved(t *rapid.T) admin.ObservedService {
	host := rapid.Custom(func(t *rapid.T) netip.Addr {
		b := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "ip4")
		if rapid.Bool().Draw(t, "ip6") {
			b = rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "ip6")
		}
		a, _ := netip.AddrFromSlice(b)
		return a.Unmap()
	})
	return admin.ObservedService{
		Side: rapid.SampledFrom([]config.Side{config.SideClient, config.SideServer}).Draw(t, "side"),
		Port: rapid.SampledFrom([]uint16{22, 80, 443, 4791, 5201, 65535, 1}).Draw(t, "port"),
		Rule: rapid.SampledFrom([]string{"", "default", "a"}).Draw(t, "rule"), Carries: rapid.IntRange(0, 3).Draw(t, "carries") == 0,
		Hosts: rapid.SliceOfN(host, 0, 20).Draw(t, "hosts"), MoreHosts: rapid.Bool().Draw(t, "more"),
		Connections: rapid.Uint64().Draw(t, "connections"), BulkBytes: rapid.Uint64().Draw(t, "bulk"),
		Bytes: admin.ByteCount{Tx: rapid.Uint64().Draw(t, "tx")},
		Gain:  rapid.SampledFrom([]map[config.Carrier]float64{nil, {config.CarrierSoft: 0.3}, {config.CarrierSoft: 0.3, config.CarrierShm: 2}}).Draw(t, "gain"),
	}
}
