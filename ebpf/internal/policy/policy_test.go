package policy

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCompilePolicyErrors(t *testing.T) {
	_, err := Compile(make([]Rule, MaxRules+1), nil)
	require.Error(t, err)
	_, err = Compile([]Rule{
		{Peers: []netip.Prefix{{}}},
		{Cgroups: []string{"["}},
		{Action: 9, Proto: 2},
		{Cgroups: []string{"../x"}},
	}, nil)
	for _, part := range []string{"policy[0].peers", "policy[1].cgroups", "policy[2].action", "policy[2].proto", "policy[3].cgroups"} {
		require.ErrorContains(t, err, part)
	}
	_, err = Compile(make([]Rule, MaxRules), nil)
	require.NoError(t, err)
	_, err = Compile([]Rule{{Cgroups: []string{"/system.slice/a..b@1.service"}}}, nil)
	require.NoError(t, err)
}
