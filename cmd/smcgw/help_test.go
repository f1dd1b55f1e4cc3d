package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/internal/golden"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// testEnv is a world that collects what is printed.
func testEnv() (e *env, stdout, stderr *bytes.Buffer) {
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	return &env{stdout: stdout, stderr: stderr, getenv: func(string) string { return "" }}, stdout, stderr
}

// commandPaths lists all command lines that name a verb.
func commandPaths(c *cobra.Command) [][]string {
	var out [][]string
	for _, sub := range c.Commands() {
		if sub.Name() == "help" || sub.Hidden {
			continue // cobra's own, or started by the program itself
		}
		out = append(out, strings.Fields(sub.CommandPath())[1:])
		out = append(out, commandPaths(sub)...)
	}
	return out
}

// TestHelp pins the help texts, which are an interface too.
func TestHelp(t *testing.T) {
	e, _, _ := testEnv()
	var all bytes.Buffer
	for _, path := range append([][]string{nil}, commandPaths(newRoot(e))...) {
		e, stdout, stderr := testEnv()
		require.Equal(t, exitOK, run(t.Context(), e, append(path, "--help")))
		require.Empty(t, stderr.String())
		fmt.Fprintf(&all, "== smcgw %s\n%s\n", strings.Join(append(path, "--help"), " "), stdout.String())
	}
	for line := range strings.Lines(all.String()) {
		require.LessOrEqual(t, utf8.RuneCountInString(line), screen.Columns+1, line)
	}
	golden.File(t, "help.golden", all.String())
}

// TestHelpOnANarrowTerminal: help fits 80 columns.
func TestHelpOnANarrowTerminal(t *testing.T) {
	e, _, _ := testEnv()
	for _, path := range append([][]string{nil}, commandPaths(newRoot(e))...) {
		e, stdout, _ := testEnv()
		e.terminal = func(io.Writer) int { return 80 }
		require.Equal(t, exitOK, run(t.Context(), e, append(path, "--help")))
		for line := range strings.Lines(stdout.String()) {
			require.LessOrEqual(t, utf8.RuneCountInString(line), 81, "%v: %s", path, line)
		}
	}
}

// TestEveryVerbOffersJSON: all but those that print no data.
func TestEveryVerbOffersJSON(t *testing.T) {
	e, _, _ := testEnv()
	for _, path := range commandPaths(newRoot(e)) {
		c, _, err := newRoot(e).Find(path)
		require.NoError(t, err)
		if name := strings.Join(path, " "); name != "up" && name != "completion" {
			require.NotNil(t, c.Flags().Lookup("json"), name)
		}
	}
}

// TestEveryVerbHasAScript: a verb without a test is not finished.
func TestEveryVerbHasAScript(t *testing.T) {
	e, _, _ := testEnv()
	for _, c := range newRoot(e).Commands() {
		if c.Hidden {
			continue
		}
		require.FileExists(t, "testdata/script/"+c.Name()+".txtar")
	}
}

// Lines of watch fit a terminal, and name the other host and the reason on each.
func TestWatchOnANarrowTerminal(t *testing.T) {
	for terminal, names := range map[int]string{
		0:   "TIME EVENT ID SIDE LOCAL REMOTE CARRIER REASON TX RX",
		100: "TIME EVENT LOCAL REMOTE CARRIER REASON",
		80:  "TIME EVENT REMOTE CARRIER REASON",
		40:  "TIME EVENT REMOTE CARRIER REASON",
	} {
		var list []string
		for _, c := range columnsWithin(terminal) {
			list = append(list, c.name)
		}
		require.Equal(t, names, strings.Join(list, " "), terminal)
	}
}

// TestNarrowTerminal: no line of what people read while they look for a cause is wider than
// a terminal of 80 columns, and no reason is shortened.
func TestNarrowTerminal(t *testing.T) {
	_, cfg := serveFake(t, "degraded")
	for _, args := range [][]string{{"status"}, {"conns"}, {"conns", "--all"}, {"doctor"}, {"peers"}, {"policy"}, {"policy", "--services"}, {"codes"}, {"codes", "wire_reset"}, {"stats"}} {
		e, stdout, stderr := testEnv()
		e.terminal, e.host = func(io.Writer) int { return 80 }, healthyHost()
		e.rdma = func() (sysfs.RDMA, error) { return sampleRDMA(), nil }
		e.getenv = func(name string) string { return map[string]string{"NO_COLOR": "1"}[name] }
		if args[0] != "codes" {
			args = append(args, "--socket", cfg.Admin)
		}
		run(t.Context(), e, args)
		require.NotEmpty(t, stdout.String(), "%v %s", args, stderr)
		for line := range strings.Lines(stdout.String()) {
			require.LessOrEqual(t, utf8.RuneCountInString(line), 81, "%v: %s", args, line)
		}
		if args[0] == "conns" {
			require.NotRegexp(t, `[a-z]…[a-z]+\)`, stdout.String())
		}
	}
}

// wrongConfigs are mistakes in configurations: what check says names the cause and the
// remedy. A status of 0 means that it is a note. The numbers are those of the kinds of
// mistakes, of which wrongCommands and TestWrongStarts of tests/e2e have the others.
var wrongConfigs = []struct {
	name, text string
	status     int
	says       []string
}{
	{"1 unknown field", "mdoe: off", 4, []string{"mdoe: unknown field (did you mean mode?)"}},
	{"1 field like none", "frequency: 7", 4, []string{"frequency: unknown field (known: schema, mode, admin,"}},
	{"2 unknown names", "mode: enforced\npolicy: [{action: accelarate}]", 4, []string{
		`:1: mode: "enforced" is not one of off, observe or enforce (did you mean enforce?)`,
		`:2: policy[0].action: "accelarate" is not one of pass, accelerate or auto (did you mean accelerate?)`,
	}},
	{"3 addresses", `policy: [{match: {peers: ["10.77.0.0/33", "fd00::/129", host.example, "10.77.0"]}}]`, 4, []string{
		`peers[0]: "10.77.0.0/33" is not an address or a prefix such as 10.0.0.0/8`, `peers[1]: "fd00::/129"`, `peers[2]: "host.example"`, `peers[3]: "10.77.0"`,
	}},
	{"4 bits after a prefix", "policy: [{match: {peers: [10.77.0.2/24]}, action: accelerate}]", 0, []string{"10.77.0.2/24 means all of 10.77.0.0/24"}},
	{"5 ports", `policy: [{match: {ports: [70000, http, "7000-6000"]}}]`, 4, []string{
		`ports[0]: "70000" is neither a port`, `ports[1]: "http" is neither a port`, `ports[2]: "7000-6000" is neither a port from 1 to 65535 nor a range such as 6000-7000; names of services are not known here`,
	}},
	{"5 port 0", "policy: [{match: {ports: [0]}}]", 4, []string{"0 is not a port"}},
	{"6 device that is not there", "devices: [eht0]", 0, []string{"there is no network device eht0 in this network namespace: see ip link"}},
	{"7 tab", "mode:\n\toff", 4, []string{":2: not YAML: found character that cannot start any token: a tab, perhaps, where only spaces may be"}},
	{"8 policy is no list", "policy: {match: {}}", 4, []string{"policy: must be a list, not a set of fields"}},
	{"9 one name twice", "policy: [{name: a, action: pass}, {name: a, action: pass}]", 4, []string{`policy[1].name: "a" names two rules`}},
	{"10 unreachable rule", "policy: [{name: all, action: pass}, {name: redis, match: {ports: [6379]}, action: accelerate}]", 0, []string{
		"policy[1] (redis): is never reached: policy[0] (all) matches all that it does: put it before that",
	}},
	{"11 limits", "limits: {max_flows: -1, memory: 1gb, peer_share: 150%, new_flows_per_second: 0, drain_timeout: 200}", 4, []string{
		`"1gb" is not an amount of memory such as 64KiB, 512MiB or 2GiB`, `"200" is not a duration such as 200ms, 10m or 1h`,
		"limits.new_flows_per_second: must not be 0", "limits.max_flows: -1 is not between 1 and 1000000", `"150%" is not a share from 0% to 100%`,
	}},
	{"11 no number", "limits: {max_flows: many}", 4, []string{`"many" is not a whole number such as 5000`}},
	{"12 carriers", "carriers: [smh]", 4, []string{`"smh" is not one of shm, soft, hw or ib (did you mean shm?)`}},
	{"12 carrier twice", "carriers: [soft, rdma-soft]", 4, []string{`carriers[1]: "soft" is listed twice`}},
	{"13 adapters without adapters", "carriers: [hw]", 0, []string{"carriers: only hw, and this host has no RDMA adapter that can be used: every connection stays native"}},
	{"14 udp", "policy: [{match: {proto: udp}, action: auto}, {match: {proto: udp, ports: [4791]}, action: accelerate}]", 4, []string{
		"auto is about connections (tcp)", "4791 is a port of the gateway itself and cannot be carried",
	}},
	{"14 sctp", "policy: [{match: {proto: sctp}}]", 4, []string{`"sctp" is not one of tcp or udp`}},
	{"15 schema", "schema: smcgw/v2", 4, []string{`"smcgw/v2" is not smcgw/v1, the only schema this version reads`}},
	{"16 keys", "security: {psk_file: /nope/psk}", 4, []string{"smcgw.yaml:1: security.psk_file: key file: open /nope/psk: no such file or directory: the gateway will not start with it"}},
	{"17 who", "policy: [{match: {users: [no-such-user-here], cgroups: [a]}}]", 4, []string{`user "no-such-user-here" is not in /etc/passwd`, `"a" is not a cgroup path such as /system.slice/redis*`}},
	{"18 metrics", "metrics: {listen: '9469'}", 4, []string{`"9469" is not an address and a port such as 127.0.0.1:9469`}},
	{"18 metrics by name", "metrics: {listen: 'localhost:99999'}", 4, []string{"the port is not a number from 1 to 65535", "localhost is not an address; names are not looked up"}},
	{"19 empty file", "", 0, []string{"# note: policy: no rule accelerates: every connection stays native"}},
	{"19 JSON", `{"mode": "observe"}`, 0, []string{"mode: observe # "}},
	{"19 two documents", "mode: off\n---\nmode: off", 4, []string{"a second document; the file must hold one"}},
	{"19 given twice", "mode: off\nmode: observe", 4, []string{":2: mode: given twice"}},
	{"19 binary", "\x00\x01", 4, []string{"not YAML: control characters are not allowed"}},
	{"20 relative path", "admin: run/sock", 4, []string{`"run/sock" is not an absolute path`}},
	{"20 long path", "admin: /" + strings.Repeat("x", 120), 4, []string{"121 bytes long, and a socket has room for 103"}},
	{"21 tuning", "{in_process: {spin: 1ms}, shards: 1000}", 4, []string{"1ms is longer than 100us", "1000 is not between 0 and 16"}},
	{"22 no action", "policy: [{match: {ports: [6379]}}]", 0, []string{"policy[0] (rule-1): has no action, and passes what it matches: action: accelerate carries it"}},
	{"23 port 22", "policy: [{match: {ports: [22]}, action: accelerate}]", 0, []string{"port 22 is on the never-list and is carried because the rule names it"}},
	{"24 loopback", "devices: [lo]", 4, []string{"the loopback device cannot be used"}},
}

func TestWrongConfigurations(t *testing.T) {
	for _, c := range wrongConfigs {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "smcgw.yaml")
			require.NoError(t, os.WriteFile(file, []byte(c.text), 0o600))
			e, stdout, stderr := testEnv()
			e.rdma = func() (sysfs.RDMA, error) { return sysfs.RDMA{}, nil }
			require.Equal(t, c.status, run(t.Context(), e, []string{"check", "-c", file}), stdout)
			require.Empty(t, stderr.String())
			for _, text := range c.says {
				require.Contains(t, stdout.String(), text)
			}
		})
	}
}

// wrongCommands are mistakes on command lines: 25 is a file that does not exist, 40 the rest.
var wrongCommands = []struct {
	kind   int
	line   string
	status int
	says   string
}{
	{40, "", 2, `no command given: "smcgw status" shows what the gateway does`},
	{40, "statsu", 2, `unknown command "statsu" for "smcgw" (did you mean status?)`},
	{40, "nonsense", 2, `unknown command "nonsense" for "smcgw"`},
	{40, "peers flsh", 2, `unknown command "flsh" for "smcgw peers" (did you mean flush?)`},
	{40, "conns kill", 2, `conns takes no argument such as "kill"`},
	{40, "conns --cloesd", 2, `conns: unknown flag: --cloesd (did you mean --closed?)`},
	{40, "status -j", 2, `status: unknown shorthand flag: 'j' in -j`},
	{40, "status --web --brief", 2, `status: if any flags in the group [web brief] are set none of the others can be; [brief web] were all set`},
	{40, "status --web --strict --socket /nope/sock", 2, `[strict web] were all set`},
	{40, "check -c", 2, `check: flag needs an argument: 'c' in -c`},
	{40, "drain --timeout soon", 2, `drain: invalid argument "soon" for "--timeout" flag`},
	{40, "codes peer_no_opt", 2, `"peer_no_opt" is not a reason (did you mean peer_no_option?); "smcgw codes" lists them`},
	{40, "codes nonsense", 2, `"nonsense" is not a reason; "smcgw codes" lists them`},
	{40, "help nosuch", 2, `help: no such command "nosuch"`},
	{40, "help statsu", 2, `help: no such command "statsu" (did you mean status?)`},
	{40, "help peers flsh", 2, `help: no such command "peers flsh" (did you mean flush?)`},
	{40, "completion tcsh", 2, `"tcsh" is not one of bash, zsh, fish`},
	{40, "completion bsah", 2, `(did you mean bash?)`},
	{40, "completion", 2, `completion takes one argument: bash, zsh, fish`},
	{40, "demote", 2, `name connections, --carrier, --device or --all`},
	{40, "demote first", 2, `"first" is no id of a connection: "smcgw conns" lists them`},
	{40, "demote --carrier sotf", 2, `"sotf" is not one of shm, soft, hw, ib, rdma-shm, rdma-soft, rdma-hw, rdma-ib or relay (did you mean soft?)`},
	{40, "statu", 2, `(did you mean status?)`},
	{40, "codes a b", 2, `codes takes one argument at most, not also "b"`},
	{40, "ping", 2, `ping takes one host: smcgw ping HOST:PORT`},
	{40, "ping a b", 2, `ping takes one host: smcgw ping HOST:PORT`},
	{40, "conns --port x", 2, `conns: --port: "x" is not a whole number`},
	{40, "conns --port 99999", 2, `conns: --port: "99999" is out of range`},
	{40, "conns --reason foo", 2, `--reason: "foo" is not a reason; "smcgw codes" lists them`},
	{40, "set foo bar", 2, `"foo" cannot be set, but log.level, log.access, rollout.percent`},
	{40, "set foo bar", 2, `See "smcgw set --help".`},
	{40, "peers flush x", 2, `See "smcgw peers flush --help".`},
	{40, "nosuch", 2, `See "smcgw --help".`},
	{40, "help nosuch", 2, `See "smcgw --help".`},
	{25, "check -c /nope/smcgw.yaml", 1, `read configuration: open /nope/smcgw.yaml: no such file or directory (-c names the file; an empty one is valid)`},
	{25, "check -c /", 1, `read configuration: / is a directory: name a file of it with -c`},
	{40, "status --socket /nope/sock", 3, `daemon not reachable at /nope/sock: connect: no such file or directory`},
}

func TestWrongCommands(t *testing.T) {
	for _, c := range wrongCommands {
		t.Run(fmt.Sprint(c.kind, " ", c.line), func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			e := &env{stdout: &stdout, stderr: &stderr, getenv: func(string) string { return "" }}
			require.Equal(t, c.status, run(t.Context(), e, strings.Fields(c.line)))
			require.Empty(t, stdout.String())
			require.Contains(t, stderr.String(), c.says)
		})
	}
}
