package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// wrongConfigs are mistakes in configurations: what check says names the cause and the
// remedy. A status of 0 means that it is a note.
var wrongConfigs = []struct {
	name, text string
	status     int
	says       []string
}{
	{"unknown field", "mdoe: off", 4, []string{"mdoe: unknown field (did you mean mode?)"}},
	{"field like none", "frequency: 7", 4, []string{"frequency: unknown field (known: schema, mode, admin,"}},
	{"unknown names", "mode: enforced\npolicy: [{action: accelarate}]", 4, []string{
		`:1: mode: "enforced" is none of off, observe or enforce (did you mean enforce?)`,
		`:2: policy[0].action: "accelarate" is none of pass, accelerate or auto (did you mean accelerate?)`,
	}},
	{"addresses", `policy: [{match: {peers: ["10.77.0.0/33", "fd00::/129", host.example, "10.77.0"]}}]`, 4, []string{
		`peers[0]: "10.77.0.0/33" is not an address or a prefix such as 10.0.0.0/8`, `peers[1]: "fd00::/129"`, `peers[2]: "host.example"`, `peers[3]: "10.77.0"`,
	}},
	{"bits behind a prefix", "policy: [{match: {peers: [10.77.0.2/24]}, action: accelerate}]", 0, []string{"10.77.0.2/24 means all of 10.77.0.0/24"}},
	{"ports", `policy: [{match: {ports: [70000, http, "7000-6000"]}}]`, 4, []string{
		`ports[0]: "70000" is neither a port`, `ports[1]: "http" is neither a port`, `ports[2]: "7000-6000" is neither a port from 1 to 65535 nor a range such as 6000-7000; names of services are not known here`,
	}},
	{"port 0", "policy: [{match: {ports: [0]}}]", 4, []string{"0 is not a port"}},
	{"device that is not there", "devices: [eht0]", 0, []string{"there is no network device eht0 in this network namespace: see ip link"}},
	{"tab", "mode:\n\toff", 4, []string{":2: not YAML: found character that cannot start any token: a tab, perhaps, where only spaces may be"}},
	{"policy is no list", "policy: {match: {}}", 4, []string{"policy: must be a list, not a set of fields"}},
	{"one name twice", "policy: [{name: a, action: pass}, {name: a, action: pass}]", 4, []string{`policy[1].name: "a" names two rules`}},
	{"unreachable rule", "policy: [{name: all, action: pass}, {name: redis, match: {ports: [6379]}, action: accelerate}]", 0, []string{
		"policy[1] (redis): is never reached: policy[0] (all) matches all that it does: put it before that",
	}},
	{"limits", "limits: {max_flows: -1, memory: 1gb, peer_share: 150%, new_flows_per_second: 0, drain_timeout: 200}", 4, []string{
		`"1gb" is not an amount of memory such as 64KiB, 512MiB or 2GiB`, `"200" is not a duration such as 200ms, 10m or 1h`,
		"limits.new_flows_per_second: must not be 0", "limits.max_flows: -1 is not between 1 and 1000000", "limits.peer_share: 150% is not between 1% and 100%",
	}},
	{"no number", "limits: {max_flows: many}", 4, []string{`"many" is not a whole number such as 5000`}},
	{"carriers", "carriers: [smh]", 4, []string{`"smh" is none of shm, soft or hw (did you mean shm?)`}},
	{"carrier twice", "carriers: [soft, rdma-soft]", 4, []string{`carriers[1]: "soft" is listed twice`}},
	{"adapters without adapters", "carriers: [hw]", 0, []string{"carriers: only hw, and this host has no RDMA adapter that can be used: every connection stays native"}},
	{"udp", "policy: [{match: {proto: udp}, action: auto}, {match: {proto: udp, ports: [4791]}, action: accelerate}]", 4, []string{
		"auto is about connections (tcp)", "4791 is a port of the gateway itself and cannot be carried",
	}},
	{"sctp", "policy: [{match: {proto: sctp}}]", 4, []string{`"sctp" is none of tcp or udp`}},
	{"schema", "schema: smcgw/v2", 4, []string{`"smcgw/v2" is not smcgw/v1, the only schema this version reads`}},
	{"keys", "security: {psk_file: /nope/psk}", 0, []string{"security.psk_file: key file: open /nope/psk: no such file or directory: the gateway will not start with it"}},
	{"who", "policy: [{match: {users: [no-such-user-here], cgroups: [a]}}]", 4, []string{`user "no-such-user-here" is not known on this host`, `"a" is not a cgroup path such as /system.slice/redis*`}},
	{"metrics", "metrics: {listen: '9469'}", 4, []string{`"9469" is not an address and a port such as 127.0.0.1:9469`}},
	{"metrics by name", "metrics: {listen: 'localhost:99999'}", 4, []string{"the port is not a number from 1 to 65535", "localhost is not an address; names are not looked up"}},
	{"two documents", "mode: off\n---\nmode: off", 4, []string{"a second document; the file must hold one"}},
	{"given twice", "mode: off\nmode: observe", 4, []string{":2: mode: given twice"}},
	{"binary", "\x00\x01", 4, []string{"not YAML: control characters are not allowed"}},
	{"relative path", "admin: run/sock", 4, []string{`"run/sock" is not an absolute path`}},
	{"long path", "admin: /" + strings.Repeat("x", 120), 4, []string{"121 bytes long, and a socket has room for 103"}},
	{"tuning", "{spin: 1ms, profile: fast, shards: 1000}", 4, []string{"1ms is longer than 100us", `"fast" is none of balanced, latency, throughput or memory`, "1000 is not between 0 and 256"}},
	{"no action", "policy: [{match: {ports: [6379]}}]", 0, []string{"policy[0] (rule-1): has no action, and passes what it matches: action: accelerate carries it"}},
	{"port 22", "policy: [{match: {ports: [22]}, action: accelerate}]", 0, []string{"port 22 is on the never-list and is carried because the rule names it"}},
	{"loopback", "devices: [lo]", 4, []string{"the loopback device cannot be used"}},
	{"fields of the past", "{rule_pref: -1, mark_mask: 0, table: 255}", 0, []string{"mark_mask: has no effect any more: remove it", "table: has no effect", "rule_pref: has no effect"}},
}

func TestWrongConfigurations(t *testing.T) {
	for _, c := range wrongConfigs {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "smcgw.yaml")
			require.NoError(t, os.WriteFile(file, []byte(c.text), 0o600))
			e, stdout, stderr := testEnv()
			e.rdma = func() (sysfs.Host, error) { return sysfs.Host{}, nil }
			require.Equal(t, c.status, run(t.Context(), e, []string{"check", "-c", file}), stdout)
			require.Empty(t, stderr.String())
			for _, text := range c.says {
				require.Contains(t, stdout.String(), text)
			}
		})
	}
}

// wrongCommands are mistakes on command lines.
var wrongCommands = []struct {
	line   string
	status int
	says   string
}{
	{"", 2, `no command given: "smcgw status" shows what the gateway does`},
	{"statsu", 2, `unknown command "statsu" for "smcgw" (did you mean status?)`},
	{"nonsense", 2, `unknown command "nonsense" for "smcgw"`},
	{"peers flsh", 2, `unknown command "flsh" for "smcgw peers" (did you mean flush?)`},
	{"conns kill", 2, `conns takes no argument such as "kill"`},
	{"conns --cloesd", 2, `conns: unknown flag: --cloesd (did you mean --closed?)`},
	{"status -j", 2, `status: unknown shorthand flag: 'j' in -j`},
	{"check -c", 2, `check: flag needs an argument: 'c' in -c`},
	{"drain --timeout soon", 2, `drain: invalid argument "soon" for "--timeout" flag`},
	{"codes peer_no_opt", 2, `"peer_no_opt" is not a reason (did you mean peer_no_option?); "smcgw codes" lists them`},
	{"codes nonsense", 2, `"nonsense" is not a reason; "smcgw codes" lists them`},
	{"help nosuch", 2, `help: no such command "nosuch"`},
	{"help statsu", 2, `help: no such command "statsu" (did you mean status?)`},
	{"help peers flsh", 2, `help: no such command "peers flsh" (did you mean flush?)`},
	{"completion tcsh", 2, `"tcsh" is none of bash, zsh, fish`},
	{"completion bsah", 2, `(did you mean bash?)`},
	{"completion", 2, `completion takes one argument: bash, zsh, fish`},
	{"demote", 2, `name connections, --carrier, --device or --all`},
	{"demote first", 2, `"first" is no id of a connection: "smcgw conns" lists them`},
	{"demote --carrier sotf", 2, `"sotf" is none of shm, soft, hw, rdma-shm, rdma-soft, rdma-hw or relay (did you mean soft?)`},
	{"check -c /nope/smcgw.yaml", 1, `read configuration: open /nope/smcgw.yaml: no such file or directory (-c names the file; an empty one is valid)`},
	{"check -c /", 1, `read configuration: / is a directory: name a file of it with -c`},
	{"status --socket /nope/sock", 3, `daemon not reachable at /nope/sock: connect: no such file or directory`},
}

func TestWrongCommands(t *testing.T) {
	for _, c := range wrongCommands {
		t.Run(c.line, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			e := &env{stdout: &stdout, stderr: &stderr, getenv: func(string) string { return "" }}
			require.Equal(t, c.status, run(t.Context(), e, strings.Fields(c.line)))
			require.Empty(t, stdout.String())
			require.Contains(t, stderr.String(), c.says)
		})
	}
}
