package config

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the golden files of testdata")

// goldenConfig compares got with the file testdata/name.
func goldenConfig(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

func TestEffectiveConfigShowsWhereItCameFrom(t *testing.T) {
	f := parseString(t, fullConfig)
	out, err := f.YAML()
	require.NoError(t, err)
	goldenConfig(t, "config_full.golden", out)

	out, err = parseString(t, "mode: enforce\npolicy:\n  - match: { ports: [80] }\n    action: accelerate\n").YAML()
	require.NoError(t, err)
	goldenConfig(t, "config_short.golden", out)
}

func TestEffectiveConfigReadsBack(t *testing.T) {
	for _, text := range []string{"", fullConfig, "carriers: []\n", "policy: [{name: 'off'}, {name: '1'}]\n"} {
		f := parseString(t, text)
		out, err := f.YAML()
		require.NoError(t, err)
		requireSameMeaning(t, f, out)
	}
}

// requireSameMeaning reads the rendered form back. Lists that are empty by
// default come back empty instead of nil.
func requireSameMeaning(t *testing.T, f *File, rendered []byte) {
	t.Helper()
	again, err := parseConfig(f.Name, rendered, testUsers)
	require.NoError(t, err, "%s", rendered)
	second, err := again.YAML()
	require.NoError(t, err)
	third, err := parseConfig(f.Name, second, testUsers)
	require.NoError(t, err)
	require.Equal(t, again.Config, third.Config)
	require.Equal(t, f.Config.Limits, again.Config.Limits)
	require.Len(t, again.Config.Policy, len(f.Config.Policy))
	for i, r := range f.Config.Policy {
		require.Equal(t, r.Name, again.Config.Policy[i].Name)
		require.ElementsMatch(t, r.Match.Peers, again.Config.Policy[i].Match.Peers)
	}
}

func TestShortDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 90 * time.Second: "1m30s", 10 * time.Minute: "10m", time.Hour: "1h",
		90 * time.Minute: "1h30m", 200 * time.Millisecond: "200ms", time.Hour + time.Second: "1h0m1s",
		20 * time.Hour: "20h", 10 * time.Second: "10s",
	} {
		require.Equal(t, want, shortDuration(d))
	}
}

func TestNotes(t *testing.T) {
	require.Equal(t, []string{"policy: no rule accelerates: every connection stays native"}, parseString(t, "").Config.Notes())
	require.Empty(t, parseString(t, "mode: enforce\npolicy: [{match: {ports: [80]}, action: accelerate}]\n").Config.Notes())
	require.Equal(t, []string{
		"mode: observe: nothing is carried",
		"carriers: the list is empty: RDMA is never used",
		"policy[0] (a): cgroups, users and uids are known of outbound connections only: the rule never matches inbound ones",
		"policy[0] (a): port 22 is on the never-list and is carried because the rule names it",
		"policy[1] (rule-2): matches everything: the rules for tcp after it are never reached",
		"policy[2] (u): datagram_port is 0: no datagram is carried",
		"policy[2] (u): port 53 is on the never-list and is carried because the rule names it",
		"metrics.listen: 0.0.0.0:9469 can be reached from other hosts, without authentication",
	}, parseString(t, `
carriers: []
datagram_port: 0
metrics: { listen: "0.0.0.0:9469" }
policy:
  - { name: a, match: { ports: [22], uids: [3] }, action: accelerate }
  - {}
  - { name: u, match: { proto: udp, ports: [53] }, action: accelerate }
  - {}
  - { name: last, match: { proto: udp } }
`).Config.Notes())
}
