package policy

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
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

func TestCarries(t *testing.T) {
	q := netip.MustParsePrefix
	p, err := Compile([]Rule{
		{Peers: []netip.Prefix{q("10.1.0.0/16")}, Action: ActionPass},
		{Peers: []netip.Prefix{q("10.2.0.0/16"), q("fd00::/8")}, Action: ActionAccelerate},
	}, nil)
	require.NoError(t, err)
	for prefix, want := range map[string]bool{
		"10.1.0.0/24": false, "10.2.3.0/24": true, "10.0.0.0/8": true, "0.0.0.0/0": true, "192.168.0.0/16": false,
		"fd77::/64": true, "2001:db8::/32": false, "::/0": true,
	} {
		require.Equal(t, want, p.Carries(q(prefix)), prefix)
	}
	p, err = Compile([]Rule{{Ports: []uint16{6379}, Action: ActionAccelerate}}, nil)
	require.NoError(t, err)
	require.True(t, p.Carries(q("192.168.0.0/16")), "every peer")
	p, err = Compile(nil, nil)
	require.NoError(t, err)
	require.False(t, p.Carries(q("0.0.0.0/0")))
}

// A pattern stands for the cgroups that exist now, each with the rules of all patterns
// that name it.
func TestCgroups(t *testing.T) {
	mount := t.TempDir()
	for _, dir := range []string{"a/x", "a/y", "b"} {
		require.NoError(t, os.MkdirAll(filepath.Join(mount, dir), 0o755))
	}
	p, err := Compile([]Rule{{Cgroups: []string{"/a/*"}}, {Cgroups: []string{"a/x", "c"}}, {}}, nil)
	require.NoError(t, err)
	want := map[uint64]uint64{}
	for dir, mask := range map[string]uint64{"a/x": 3, "a/y": 1} {
		id, err := cgroupID(filepath.Join(mount, dir))
		require.NoError(t, err)
		want[id] = mask
	}
	require.Equal(t, want, p.Cgroups(mount))
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
