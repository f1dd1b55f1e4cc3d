package config

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/golden"
	"github.com/smcgw/smcgw/lab/testnet"
)

func TestEffectiveConfigShowsWhereItCameFrom(t *testing.T) {
	f := parseString(t, fullConfig)
	out, err := f.YAML()
	require.NoError(t, err)
	golden.File(t, "config_full.golden", string(out))

	out, err = parseString(t, "mode: enforce\npolicy:\n  - match: { ports: [80] }\n    action: accelerate\n").YAML()
	require.NoError(t, err)
	golden.File(t, "config_short.golden", string(out))
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
	require.Equal(t, []string{"policy: no rule accelerates: every connection stays native"}, parseString(t, "").Notes())
	require.Empty(t, parseString(t, "mode: enforce\npolicy: [{match: {ports: [80]}, action: accelerate}]\n").Notes())
	require.Equal(t, []string{
		"policy[1] (rule-2): has no action, and passes what it matches: action: accelerate carries it",
		"policy[3] (rule-4): has no action, and passes what it matches: action: accelerate carries it",
		"policy[4] (last): has no action, and passes what it matches: action: accelerate carries it",
		"mode: observe: nothing is carried",
		"carriers: the list is empty: RDMA is never used",
		"policy[0] (a): cgroups and users are known of outbound connections only: the rule never matches inbound ones",
		"policy[0] (a): port 22 is on the never-list and is carried because the rule names it",
		"policy[2] (u): datagram_port is 0: no datagram is carried",
		"policy[2] (u): port 53 is on the never-list and is carried because the rule names it",
		"policy[3] (rule-4): is never reached: policy[1] (rule-2) matches all that it does: put it before that",
		"metrics.listen: 0.0.0.0:9469 can be reached from other hosts, without authentication",
	}, parseString(t, `
carriers: []
datagram_port: 0
metrics: { listen: "0.0.0.0:9469" }
policy:
  - { name: a, match: { ports: [22], users: [3] }, action: accelerate }
  - {}
  - { name: u, match: { proto: udp, ports: [53] }, action: accelerate }
  - {}
  - { name: last, match: { proto: udp } }
`).Notes())
}

// A guard that compares needs connections that are left native.
func TestNotesOfTheGuard(t *testing.T) {
	require.Equal(t, []string{
		"policy[0] (a): percent is 100%, which leaves guard.slower no native connections to compare with: 95% would",
	}, parseString(t, `
mode: enforce
guard: { slower: 50% }
policy:
  - { name: a, match: { ports: [80] }, action: accelerate }
  - { name: b, match: { ports: [81] }, action: accelerate, percent: 95% }
  - { name: c, match: { ports: [82], direction: server }, action: accelerate }
  - { name: d, match: { ports: [83], proto: udp }, action: accelerate }
  - { name: e, match: { ports: [84] }, action: pass }
`).Notes())
}

// Notes about what is written differently from what it means.
func TestNotesAboutTheText(t *testing.T) {
	require.Equal(t, []string{
		"policy[0].match.peers[0]: 10.77.0.2/24 means all of 10.77.0.0/24: the bits after the prefix do not count; one host is 10.77.0.2",
	}, parseString(t, `
mode: enforce
policy: [{ match: { peers: [10.77.0.2/24, 10.0.0.0/8, 10.77.0.2] }, action: accelerate }]
`).Notes())
}

// A rule is never reached where one before it has all that it has.
func TestUnreachableRules(t *testing.T) {
	for _, c := range []struct {
		first, second string
		covers        bool
	}{
		{"{}", "{ports: [80]}", true},
		{"{ports: [80]}", "{}", false},
		{"{ports: [80, 81]}", "{ports: [81]}", true},
		{"{ports: [80]}", "{ports: [80, 81]}", false},
		{"{peers: [10.0.0.0/8]}", "{peers: [10.1.0.0/16, 10.2.0.1], ports: [80]}", true},
		{"{peers: [10.1.0.0/16]}", "{peers: [10.0.0.0/8]}", false},
		{"{peers: [10.0.0.0/8]}", "{ports: [80]}", false},
		{"{cgroups: [/a]}", "{cgroups: [/a], users: [7]}", true},
		{"{users: [7]}", "{users: [7, 8]}", false},
		{"{proto: udp}", "{ports: [80]}", false},
		{"{ports: [80-90]}", "{ports: [80, 85-90]}", true},
		{"{ports: [80-90]}", "{ports: [85-91]}", false},
		{"{direction: client}", "{ports: [80]}", false},
		{"{direction: client}", "{direction: client, ports: [80]}", true},
	} {
		text := "mode: enforce\npolicy: [{name: a, match: " + c.first + ", action: accelerate}, {name: b, match: " + c.second + ", action: accelerate}]"
		const note = "policy[1] (b): is never reached: policy[0] (a) matches all that it does: put it before that"
		if c.covers {
			require.Contains(t, parseString(t, text).Notes(), note, text)
		} else {
			require.NotContains(t, parseString(t, text).Notes(), note, text)
		}
	}
}

// A rule that names a port of the never-list is reached after those that carry without a
// name of it, and by no other action.
func TestReachableNeverPorts(t *testing.T) {
	const note = "policy[1] (b): is never reached: policy[0] (a) matches all that it does: put it before that"
	for _, c := range []struct {
		first, second string
		reached       bool
	}{
		{"{action: accelerate}", "{match: {ports: [22]}, action: accelerate}", true},
		{"{match: {ports: [1-1024]}, action: auto}", "{match: {ports: [22, 80]}, action: accelerate}", true},
		{"{action: accelerate}", "{match: {ports: [9469]}, action: accelerate}", true},
		{"{match: {ports: [22]}, action: accelerate}", "{match: {ports: [22]}, action: accelerate}", false},
		{"{action: accelerate}", "{match: {ports: [20-25]}, action: accelerate}", false},
		{"{action: accelerate}", "{match: {ports: [22]}, action: pass}", false},
		{"{action: pass}", "{match: {ports: [22]}, action: accelerate}", false},
	} {
		first, second := strings.Replace(c.first, "{", "{name: a, ", 1), strings.Replace(c.second, "{", "{name: b, ", 1)
		text := "mode: enforce\nmetrics: { listen: '127.0.0.1:9469' }\npolicy: [" + first + ", " + second + "]"
		notes := parseString(t, text).Notes()
		require.Equal(t, !c.reached, slices.Contains(notes, note), "%s: %q", text, notes)
	}
}

func TestParseCarrier(t *testing.T) {
	for text, want := range map[string]report.Carrier{"soft": report.CarrierSoft, "rdma-soft": report.CarrierSoft, "shm": report.CarrierShm, "relay": report.CarrierRelay} {
		c, err := ParseCarrier(text)
		require.NoError(t, err)
		require.Equal(t, want, c)
	}
	_, err := ParseCarrier("rdma-sotf")
	require.EqualError(t, err, `"rdma-sotf" is not one of shm, soft, hw, ib, rdma-shm, rdma-soft, rdma-hw, rdma-ib or relay (did you mean rdma-soft?)`)
	require.Equal(t, []report.DeviceKind{report.DeviceSoft, report.DeviceShm}, parseString(t, "carriers: [rdma-soft, shm]").Config.Carriers)
}

// hindrances returns what keeps a gateway from starting with a valid file.
func hindrances(t *testing.T, text string, runsAs Account) string {
	t.Helper()
	f := parseString(t, text)
	require.NotContains(t, strings.Join(f.Notes(), "\n"), "will not start")
	if err := f.Hindrances(runsAs); err != nil {
		return err.Error()
	}
	return ""
}

// TestHindranceOfCgroupPath: a path that is no directory of cgroup2 is an error.
func TestHindranceOfCgroupPath(t *testing.T) {
	dir := t.TempDir()
	text := "\ncgroup_path: " + dir + "\n"
	require.Empty(t, hindrances(t, "steering: off"+text, Account{}), "it is not used")
	_, err := parseString(t, text).Config.Cgroup()
	require.EqualError(t, err, "cgroup_path: "+dir+" is no directory of cgroup2")
	require.Equal(t, "line 2: cgroup_path: "+dir+" is no directory of cgroup2: the gateway will not start with it", hindrances(t, text, Account{}))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.controllers"), nil, 0o600))
	require.Empty(t, hindrances(t, text, Account{}))
}

// TestHindranceOfKeys: so is a file of keys that the gateway would refuse, or that its account
// may not read.
func TestHindranceOfKeys(t *testing.T) {
	text := func(path string) string { return "security: {psk_file: " + path + "}" }
	good := keyFile(t, 0o600, goodKey)
	require.Empty(t, hindrances(t, text(good), Account{}))
	require.Contains(t, hindrances(t, text(keyFile(t, 0o600, "short")), Account{}), "line 1: security.psk_file: key file")
	require.Contains(t, hindrances(t, text("/nope/psk"), Account{}), "no such file or directory: the gateway will not start with it")

	testnet.Require(t, "root")
	require.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(good)), 0o755))
	require.Contains(t, hindrances(t, text(good), Account{User: "nobody"}), "permission denied: the gateway's user must read it: chgrp smcgw, chmod 640")
	require.NoError(t, os.Chmod(good, 0o640))
	require.Contains(t, hindrances(t, text(good), Account{User: "65534"}), "permission denied", "the groups of root do not count")
	require.Empty(t, hindrances(t, text(good), Account{User: "nobody", Groups: []string{"root"}}))
	require.Empty(t, hindrances(t, text(good), Account{User: "no such user"}))
	require.NoError(t, os.Chown(good, 65534, 0))
	require.NoError(t, os.Chmod(good, 0o400))
	require.Empty(t, hindrances(t, text(good), Account{User: "nobody"}))
	_, err := LoadKeys(good)
	require.NoError(t, err)
	require.Equal(t, 0, os.Geteuid())
}

// TestOccupiedSockets: a path at which no socket can be made is noted, and an error where the
// gateway cannot do without.
func TestOccupiedSockets(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	require.NoError(t, err)
	defer l.Close()
	note := "in_process.socket: " + dir + " is there and is no socket: none can be made in its place"
	require.Contains(t, parseString(t, "in_process: {socket: "+dir+"}").Notes(), note)
	require.Equal(t, "line 1: admin: "+dir+" is there and is no socket: the gateway will not start with it", hindrances(t, "admin: "+dir, Account{}))
	for _, free := range []string{"s", "none"} {
		path := filepath.Join(dir, free)
		require.NotContains(t, strings.Join(parseString(t, "in_process: {socket: "+path+"}").Notes(), ""), "no socket")
		require.Empty(t, hindrances(t, "admin: "+path, Account{}))
	}
}
