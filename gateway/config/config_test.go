package config

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/golden"
	"github.com/smcgw/smcgw/lab/leak"
)

// testUsers knows one user, whatever the host has.
func testUsers(name string) (uint32, error) {
	if name == "redis" {
		return 999, nil
	}
	return 0, fmt.Errorf("user %q is not known on this host", name)
}

// validated is what is wrong with a configuration that was built.
func validated(c Config) error { return joinFieldErrors(c.validate()) }

func parseString(t *testing.T, text string) *File {
	t.Helper()
	f, err := parseConfig("smcgw.yaml", []byte(text), testUsers)
	require.NoError(t, err)
	return f
}

const fullConfig = `schema: smcgw/v1
mode: enforce                      # off | observe | enforce
admin: /run/smcgw/smcgw.sock
devices: [eth0]
policy:
  - { name: redis, match: { ports: [6379], peers: [10.1.2.3/8, "fd00::/8", 192.0.2.7, "::ffff:10.0.0.0/104"], cgroups: [] }, action: accelerate }
  - { name: web, match: { direction: client, ports: [80, 443, 6000-7000], cgroups: ["/system.slice/nginx*"], users: [redis, 0, 1000] }, action: auto, percent: 25%, way: in-process }
  - { name: dns, match: { proto: udp, ports: [53] }, action: accelerate }
  - { name: default, action: pass }
rollout: { percent: 0.5 }
guard: { aborted: 1%, slower: 50%, window: 30s, minimum: 7 }
steering: off
in_process: { enabled: on, socket: /run/x.sock, calls: 3, spin: 20us, memory: 1GiB, shaped: on, between_hosts: on }
carriers: [shm, hw, soft]
shm_dir: /run/smcgw/shm
soft: { udp_port: 4792 }
hw: { traffic_class: 104, mixed: on }
datagram_port: 4800
limits: { max_flows: 2000, memory: 2GiB, handshake_timeout: 300ms, new_flows_per_second: 100, new_flows_at_once: 8, drain_timeout: 5m, hw_flows: 50, peer_share: 30%, stall_timeout: 30s }
fallback: { negative_cache: 5m }
metrics: { listen: "127.0.0.1:9469" }
state_dir: /srv/smcgw
cgroup_path: /sys/fs/cgroup/unified
shards: 2
log: { level: debug, format: json }
security: { psk_file: /etc/smcgw/psk }
`

func TestParseFullConfig(t *testing.T) {
	c := parseString(t, fullConfig).Config
	want := Config{
		Schema: schema, Mode: report.ModeEnforce, Admin: "/run/smcgw/smcgw.sock", Devices: []string{"eth0"},
		Policy: []Rule{
			{Name: "redis", Match: Match{Ports: Ports(6379), Peers: []netip.Prefix{
				netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"),
				netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("10.0.0.0/8"),
			}, Cgroups: []string{}, Proto: report.ProtoTCP, Direction: report.DirectionBoth}, Action: report.ActionAccelerate, Way: report.WayAny},
			{Name: "web", Match: Match{
				Proto: report.ProtoTCP, Direction: report.DirectionClient, Ports: append(Ports(80, 443), newPortRange(6000, 7000)), Cgroups: []string{"/system.slice/nginx*"},
				Users: []User{{Name: "redis", ID: 999}, {}, {ID: 1000}},
			}, Action: report.ActionAuto, Percent: 25 * percent, Way: report.WayInProcess},
			{Name: "dns", Match: Match{Proto: report.ProtoUDP, Direction: report.DirectionBoth, Ports: Ports(53)}, Action: report.ActionAccelerate, Way: report.WayAny},
			{Name: "default", Match: Match{Proto: report.ProtoTCP, Direction: report.DirectionBoth}, Action: report.ActionPass, Way: report.WayAny},
		},
		Steering: SwitchOff, InProcess: InProcess{
			Enabled: SwitchOn, Socket: "/run/x.sock", Calls: 3, Spin: Spin(20 * time.Microsecond), Memory: GiB, Shaped: SwitchOn, BetweenHosts: SwitchOn,
		},
		Rollout: Rollout{Percent: 50}, Guard: Guard{Aborted: 1 * percent, Slower: 50 * percent, Window: 30 * time.Second, Minimum: 7},
		Carriers: []report.DeviceKind{report.DeviceShm, report.DeviceHW, report.DeviceSoft}, ShmDir: "/run/smcgw/shm", Soft: Soft{UDPPort: 4792},
		HW: HW{TrafficClass: 104, Mixed: SwitchOn}, DatagramPort: 4800,
		Limits:   Limits{MaxFlows: 2000, Memory: 2 * GiB, HandshakeTimeout: 300 * time.Millisecond, NewFlowsPerSecond: 100, NewFlowsAtOnce: 8, DrainTimeout: 5 * time.Minute, HWFlows: 50, PeerShare: 30 * percent, StallTimeout: 30 * time.Second},
		Fallback: Fallback{NegativeCache: 5 * time.Minute},
		Security: Security{PSKFile: "/etc/smcgw/psk"},
		Metrics:  Metrics{Listen: "127.0.0.1:9469"},
		StateDir: "/srv/smcgw", CgroupPath: "/sys/fs/cgroup/unified", Shards: 2,
		Log: Log{Level: LogDebug, Format: LogJSON, Access: AccessOff},
	}
	require.Equal(t, want, c)
	require.True(t, c.Policy[1].outboundOnly())
	require.False(t, c.Policy[0].outboundOnly())
	require.Equal(t, Match{Proto: report.ProtoTCP, Direction: report.DirectionBoth}, c.Policy[3].Match)
}

func TestEveryFieldIsOptional(t *testing.T) {
	want := Config{}.WithDefaults()
	require.Equal(t, Config{
		Schema: schema, Mode: report.ModeObserve, Admin: "/run/smcgw/smcgw.sock",
		Steering: SwitchOn, InProcess: InProcess{
			Enabled: SwitchOn, Socket: "/run/smcgw/in-process/broker.sock", Calls: 32, Spin: NoSpin, Memory: 64 * GiB, Shaped: SwitchOff, BetweenHosts: SwitchOff,
		},
		Rollout: Rollout{Percent: AllShare}, Guard: Guard{Aborted: NoShare, Slower: NoShare, Window: time.Minute, Minimum: 5},
		Carriers: []report.DeviceKind{report.DeviceShm, report.DeviceHW, report.DeviceSoft}, ShmDir: "/run/smcgw/shm", Soft: Soft{UDPPort: 4791}, HW: HW{Mixed: SwitchOff}, DatagramPort: 4790,
		Limits:   Limits{MaxFlows: 20000, Memory: GiB, HandshakeTimeout: 200 * time.Millisecond, NewFlowsPerSecond: 5000, NewFlowsAtOnce: 32, DrainTimeout: 10 * time.Minute, HWFlows: 1024, PeerShare: 50 * percent, StallTimeout: time.Minute},
		Fallback: Fallback{NegativeCache: 10 * time.Minute},
		StateDir: "/var/lib/smcgw",
		Log:      Log{Level: LogInfo, Format: LogAuto, Access: AccessOff},
	}, want)
	require.NoError(t, validated(want))
	for _, text := range []string{"", "# nothing\n", "---\n", "mode:\nlimits:\n", "limits: {}\n", "limits: { memory: }\n"} {
		require.Equal(t, want, parseString(t, text).Config, "%q", text)
	}
}

func TestSoftPortIsNoSourcePort(t *testing.T) {
	for _, port := range []string{"0", "49150", "65535", "70000"} {
		_, err := parseConfig("f", []byte("soft: { udp_port: "+port+" }\n"), testUsers)
		require.ErrorContains(t, err, "soft.udp_port", port)
	}
	require.EqualValues(t, 49149, parseString(t, "soft: { udp_port: 49149 }\n").Config.Soft.UDPPort)
}

func TestRulesAreNamedAndPassByDefault(t *testing.T) {
	c := parseString(t, "policy: [{}, {name: a}, {match: {ports: [1]}}]\n").Config
	require.Equal(t, []string{"rule-1", "a", "rule-3"}, []string{c.Policy[0].Name, c.Policy[1].Name, c.Policy[2].Name})
	require.Equal(t, report.ActionPass, c.Policy[0].Action)
}

func TestDefaultsDoNotTouchTheOriginal(t *testing.T) {
	c := Config{Policy: []Rule{{}}}
	_ = c.WithDefaults()
	require.Equal(t, Config{Policy: []Rule{{}}}, c)
}

func TestAllErrorsAtOnce(t *testing.T) {
	_, err := parseConfig("f", []byte(`mode: enfroce
polcy: []
limits:
  max-flows: 3
  memory: 2GB
  handshake_timeout: -1s
policy:
  - name: a
    match: { ports: [0, 70000, 22], peers: [10.0.0.0/33, nowhere], users: [nobody-knows] }
  - name: a
    action: drop
shards: one
fallback: [1]
limits.retry: { a: b }
`), testUsers)
	var got []string
	for _, fe := range FieldErrors(err) {
		got = append(got, fe.Error())
	}
	require.Equal(t, []string{
		`line 1: mode: "enfroce" is not one of off, observe or enforce (did you mean enforce?)`,
		`line 2: polcy: unknown field (did you mean policy?)`,
		`line 4: limits.max-flows: unknown field (did you mean max_flows?)`,
		`line 5: limits.memory: "2GB" is not an amount of memory such as 64KiB, 512MiB or 2GiB`,
		`line 6: limits.handshake_timeout: -1s is not between 10ms and 10s`,
		`line 9: policy[0].match.ports[1]: "70000" is neither a port from 1 to 65535 nor a range such as 6000-7000; names of services are not known here`,
		`line 9: policy[0].match.peers[0]: "10.0.0.0/33" is not an address or a prefix such as 10.0.0.0/8 or fd00::/8`,
		`line 9: policy[0].match.peers[1]: "nowhere" is not an address or a prefix such as 10.0.0.0/8 or fd00::/8`,
		"line 9: policy[0].match.ports[0]: 0 is not a port",
		`line 9: policy[0].match.users[0]: user "nobody-knows" is not known on this host`,
		`line 10: policy[1].name: "a" names two rules`,
		`line 11: policy[1].action: "drop" is not one of pass, accelerate or auto`,
		`line 12: shards: "one" is not a whole number such as 5000`,
		`line 13: fallback: must be a set of fields, not a list`,
		`line 14: limits.retry: unknown field (known: schema, mode, admin, devices, policy, rollout, guard, steering, in_process, carriers, shm_dir, soft, hw, datagram_port, limits, fallback, security, metrics, state_dir, cgroup_path, shards, log)`,
	}, got)
	var fe *FieldError
	require.ErrorAs(t, err, &fe)
}

func TestSingleErrors(t *testing.T) {
	for text, want := range map[string]string{
		"mode: [off]":           "line 1: mode: must be a single value, not a list",
		"devices: eth0":         `line 1: devices: must be a list, not "eth0"`,
		"devices: [eth0, eth0]": `line 1: devices[1]: "eth0" is listed twice`,
		"devices: [lo]":         "line 1: devices[0]: the loopback device cannot be used",
		"devices: [~]":          "line 1: devices[0]: has no value",
		"a: &x 1":               "line 1: a: anchors and aliases are not supported",
		"mode: off\nlimits: {max_flows: 1}\nmode: off": "line 3: mode: given twice",
		"limits: {memory: 1GiB, memory: 2GiB}":         "line 1: limits.memory: given twice",
		"mode:\nmode: off":                             "line 2: mode: given twice",
		"<<: {shards: 3}":                              "line 1: <<: anchors and aliases are not supported",
		"in_process: {spin: 1ms}":                      "line 1: in_process.spin: 1ms is longer than 100us",
		"in_process: {socket: a}":                      `line 1: in_process.socket: "a" is not an absolute path`,
		"in_process: {calls: 0, memory: 1MiB}":         "line 1: in_process.memory: 1MiB is not between 16MiB and 1024TiB",
		"steering: off\nin_process: {enabled: off}":    "line 1: steering: off, and in_process.enabled too: nothing is left to do",
		`mode: ""`:                `line 1: mode: "" is not a name`,
		"policy: [{way: native}]": `line 1: policy[0].way: "native" is not one of any, in-process or steered`,
		"policy: [{match: {proto: udp}, way: in-process}]": "line 1: policy[0].way: datagrams do not go in process",
		"shards: 1.5":               `line 1: shards: "1.5" is not a whole number`,
		"shards: '2'":               `line 1: shards: "2" is not a whole number`,
		"shards: -1":                `line 1: shards: -1 is not between 0 and 16`,
		"shards: 010":               `line 1: shards: "010" is not written in decimal`,
		"shards: 0x10":              `line 1: shards: "0x10" is not written in decimal`,
		"shards: 1_0":               `line 1: shards: "1_0" is not written in decimal`,
		"hw: {traffic_class: 2.7}":  `line 1: hw.traffic_class: "2.7" is not a number from 0 to 255`,
		"hw: {traffic_class: 0104}": `line 1: hw.traffic_class: "0104" is not written in decimal`,
		"hw: {traffic_class: 256}":  `line 1: hw.traffic_class: "256" is not a number from 0 to 255`,
		"shards: [1]":               "line 1: shards: must be a single value, not a list",
		"admin: {a: b}":             "line 1: admin: must be a single value, not a set of fields",
		"policy: [{match: {users: [1, 4294967296]}}]":               `line 1: policy[0].match.users[1]: user "4294967296" is not known on this host`,
		"policy: [{match: {users: [010]}}]":                         `line 1: policy[0].match.users[0]: user "010" is not known on this host`,
		"policy: [{match: {users: ['']}}]":                          `line 1: policy[0].match.users[0]: "" is neither the name nor the number of a user`,
		"policy: [{match: {users: [~]}}]":                           "line 1: policy[0].match.users[0]: has no value",
		"policy: [{name: '70000', match: {ports: [70000, 70000]}}]": `line 1: policy[0].match.ports[0]: "70000" is neither a port from 1 to 65535 nor a range such as 6000-7000; names of services are not known here`,
		"policy: [a, {name: b, action: drop}]":                      `line 1: policy[0]: must be a set of fields, not "a"`,
		"fallback: {negative_cache: soon}":                          `line 1: fallback.negative_cache: "soon" is not a duration such as 200ms, 10m or 1h`,
		"fallback: {negative_cache: 10}":                            `line 1: fallback.negative_cache: "10" is not a duration such as 200ms, 10m or 1h`,
		"admin: &x /a\nshm_dir: *x":                                 "line 1: admin: anchors and aliases are not supported",
		"limits: {max_flows: 0}":                                    "line 1: limits.max_flows: must not be 0",
		"limits: {handshake_timeout: 0s}":                           "line 1: limits.handshake_timeout: must not be 0",
		"limits: {stall_timeout: 0s}":                               "line 1: limits.stall_timeout: must not be 0",
		"limits: {stall_timeout: 2h}":                               "line 1: limits.stall_timeout: 2h0m0s is not between 1s and 1h0m0s",
		"limits: {memory: 0}":                                       "line 1: limits.memory: must not be 0",
		"limits: {memory: 4KiB}":                                    "line 1: limits.memory: 4KiB is not between 1MiB and 16TiB",
		"limits: {memory: 9999999999GiB}":                           "is not an amount of memory",
		"admin: run/x":                                              `line 1: admin: "run/x" is not an absolute path`,
		"admin: /" + strings.Repeat("x", 103):                       "line 1: admin: 104 bytes long, and a socket has room for 103",
		"shm_dir: /" + strings.Repeat("x", 90):                      "line 1: shm_dir: 91 bytes long, and its sockets have room for 67",
		"metrics: {listen: localhost}":                              "line 1: metrics.listen: \"localhost\" is not an address and a port",
		"metrics: {listen: ':0'}":                                   `metrics.listen: ":0": the port is not a number from 1 to 65535`,
		"metrics: {listen: 'localhost:9469'}":                       "metrics.listen: \"localhost:9469\": localhost is not an address; names are not looked up",
		"limits: {memroy: 1GiB}":                                    "line 1: limits.memroy: unknown field (did you mean memory?)",
		"carriers: [smh]":                                           `"smh" is not one of shm, soft, hw or ib (did you mean shm?)`,
		"schema: smcgw/v2":                                          `line 1: schema: "smcgw/v2" is not smcgw/v1`,
		"mode: off\n---\nmode: off":                                 "a second document",
		"mode: [":                                                   "line 1: not YAML: ",
		"\tmode: off":                                               "not YAML: ",
		"policy: [{name: 'a b'}]":                                   `line 1: policy[0].name: "a b" is not a name`,
		"policy: [{match: {cgroups: [x]}}]":                         `line 1: policy[0].match.cgroups[0]: "x" is not a cgroup path`,
		"policy: [{match: {cgroups: ['/[']}}]":                      "is not a cgroup path",
		"policy:\n- match: {proto: udp}\n  action: auto":            "line 3: policy[0].action: auto is about connections (tcp)",
		"carriers: [shm, shm]":                                      `line 1: carriers[1]: "shm" is listed twice`,
		"policy: [{match: {proto: sctp}}]":                          `line 1: policy[0].match.proto: "sctp" is not one of tcp or udp`,
		"datagram_port: -1":                                         `line 1: datagram_port: "-1" is not a number from 0 to 65535`,
		"datagram_port: 50000":                                      `line 1: datagram_port: 50000 is not between 1 and 49151`,
		"datagram_port: 4791":                                       `line 1: datagram_port: 4791 is the port of the soft device`,
		"carriers: [tcp]":                                           `line 1: carriers[0]: "tcp" is not one of shm, soft, hw or ib`,
		"[1, 2]":                                                    "line 1: must be a set of fields, not a list",
		"? [a]\n: b":                                                "line 1: the name of a field must be a single value, not a list",
		"policy: [{match: {ports: [7000-6000]}}]":                   `line 1: policy[0].match.ports[0]: "7000-6000" is neither a port`,
		"policy: [{match: {ports: [1-70000]}}]":                     `"1-70000" is neither a port`,
		"policy: [{match: {ports: [010]}}]":                         `line 1: policy[0].match.ports[0]: "010" is neither a port`,
		"policy: [{match: {ports: [0]}}]":                           "line 1: policy[0].match.ports[0]: 0 is not a port",
		"policy: [{match: {ports: [0-9]}}]":                         "line 1: policy[0].match.ports[0]: 0 is not a port",
		"policy: [{match: {direction: in}}]":                        `line 1: policy[0].match.direction: "in" is not one of both, client or server`,
		"policy: [{match: {direction: server, users: [1]}}]":        "line 1: policy[0].match.direction: cgroups and users are known of outbound connections only",
		"policy: [{percent: 10}]":                                   "line 1: policy[0].percent: is about rules that carry",
		"policy: [{action: accelerate, percent: 0}]":                "line 1: policy[0].percent: 0% is written as action: pass",
		"rollout: {percent: 101}":                                   `line 1: rollout.percent: "101" is not a share from 0% to 100%`,
		"rollout: {percent: 0.001}":                                 `"0.001" is not a share`,
		"steering: no":                                              `line 1: steering: "no" is not one of off or on (did you mean off?)`,
		"in_process: {shaped: True}":                                `line 1: in_process.shaped: "True" is not one of off or on (did you mean on?)`,
		"guard: {window: 1ms}":                                      "line 1: guard.window: 1ms is not between 1s and 24h",
		"guard: {slower: 5%}":                                       "line 1: guard.slower: 5% is below 10%: of connections that are as fast as native ones 5% count as slower",
		"guard: {minimum: 0}":                                       "line 1: guard.minimum: must not be 0",
		"datagram_port: 4800\nsoft: {udp_port: 4798}":               "line 1: datagram_port: 4800 is the alternate port of the soft device",
		"log: {level: loud}":                                        `line 1: log.level: "loud" is not one of debug, info, warn or error`,
	} {
		_, err := parseConfig("f", []byte(text), testUsers)
		require.ErrorContains(t, err, want, "%q", text)
		require.NotEmpty(t, FieldErrors(err), "%q", text)
	}
}

// TestErrorsHoldNoKey: a key that stands where the name of its file belongs is not said again.
func TestErrorsHoldNoKey(t *testing.T) {
	for text, want := range map[string]string{
		"security: {psk_file: correct horse battery}":     "line 1: security.psk_file: not an absolute path",
		`security: {psk_file: "/correct\0horse battery"}`: "line 1: security.psk_file: not an absolute path",
		"security: {psk_file: [correct horse battery]}":   "line 1: security.psk_file: must be a single value, not a list",
		"security: {psk_file: {correct: horse battery}}":  "line 1: security.psk_file: must be a single value, not a set of fields",
		"security: correct horse battery":                 "line 1: security: must be a set of fields, not a single value",
		"security: [correct horse battery]":               "line 1: security: must be a set of fields, not a list",
	} {
		_, err := parseConfig("f", []byte(text), testUsers)
		require.ErrorContains(t, err, want)
		require.NotRegexp(t, "correct|horse|battery", err.Error(), text)
	}
}

func TestTooManyRulesAndTooLargeFiles(t *testing.T) {
	_, err := parseConfig("f", []byte("policy: ["+strings.Repeat("{},", 65)+"]"), testUsers)
	require.EqualError(t, err, "line 1: policy: 65 rules; at most 64 are possible")
	_, err = parseConfig("f", make([]byte, maxConfigSize+1), testUsers)
	require.EqualError(t, err, "larger than 1MiB")
}

// A policy that the programs can hold once, but not beside the one before, would start and
// refuse every reload.
func TestTooManyKeysOfRules(t *testing.T) {
	rule := func(list string, n int, entry func(i int) string) string {
		all := make([]string, n)
		for i := range all {
			all[i] = entry(i)
		}
		return "{match: {" + list + ": [" + strings.Join(all, ", ") + "]}}"
	}
	four := func(i int) string { return fmt.Sprintf("10.0.%d.%d", i>>8, i&0xff) }
	for want, text := range map[string]string{
		"line 1: policy: 8001 IPv4 prefixes of peers; at most 8000 are possible": rule("peers", 8001, four),
		"line 1: policy: 8001 IPv6 prefixes of peers; at most 8000 are possible": rule("peers", 8001, func(i int) string { return fmt.Sprintf("'fd00::%x'", i) }),
		"line 1: policy: 8001 users; at most 8000 are possible":                  rule("users", 8001, strconv.Itoa),
	} {
		_, err := parseConfig("f", []byte("policy: ["+text+"]"), testUsers)
		require.EqualError(t, err, want)
	}
	half := rule("peers", 8000, four)
	parseString(t, "policy: ["+half+", "+half+"]")
}

func TestLoadConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "smcgw.yaml")
	_, err := Load(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte("mode: off\n"), 0o600))
	f, err := Load(path)
	require.NoError(t, err)
	require.Equal(t, report.ModeOff, f.Config.Mode)
	require.Equal(t, path+":1", f.origin("mode"))
}

// TestEveryFieldIsDocumented compares the table with the types.
func TestEveryFieldIsDocumented(t *testing.T) {
	var paths []string
	walkFields(reflect.TypeFor[Config](), "", func(path string, f reflect.StructField) {
		paths = append(paths, path)
	})
	var listed []string
	for _, f := range configFields {
		listed = append(listed, f.Path)
		require.NotEmpty(t, f.Doc, f.Path)
	}
	require.Equal(t, paths, listed, "config_fields.go and Config differ")
}

// TestEveryLeafHasADefaultOrSaysWhatEmptyMeans keeps a new field from being
// silently zero.
func TestEveryLeafHasADefaultOrSaysWhatEmptyMeans(t *testing.T) {
	fields := make(map[string]field)
	for _, f := range configFields {
		fields[f.Path] = f
	}
	walkFields(reflect.TypeFor[Config](), "", func(path string, f reflect.StructField) {
		if f.Type.Kind() == reflect.Struct || path == "policy" {
			return
		}
		doc := fields[path]
		require.True(t, doc.Default != "" || strings.Contains(doc.Doc, "empty"), "%s has no default", path)
	})
}

// walkFields calls fn for every field of the configuration, with its path.
func walkFields(t reflect.Type, path string, fn func(string, reflect.StructField)) {
	for f := range t.Fields() {
		p := fieldPath(path, f.Tag.Get("yaml"))
		fn(p, f)
		elem := f.Type
		if elem.Kind() == reflect.Slice {
			elem, p = elem.Elem(), p+"[]"
		}
		if elem.Kind() == reflect.Struct && elem != reflect.TypeFor[netip.Prefix]() && elem != reflect.TypeFor[User]() {
			walkFields(elem, p, fn)
		}
	}
}

func TestValidateOfABuiltConfig(t *testing.T) {
	c := Config{Mode: "x"}.WithDefaults()
	c.Policy = []Rule{{Name: "a", Action: report.ActionPass, Match: Match{Proto: report.ProtoTCP, Peers: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8"), {}}}}}
	err := validated(c)
	require.EqualError(t, err, "mode: \"x\" is not one of off, observe or enforce\n"+
		"policy[0].match.peers[0]: 10.0.0.1/8 is not a masked prefix\n"+
		"policy[0].match.peers[1]: invalid Prefix is not a masked prefix")
	require.Len(t, FieldErrors(errors.Join(err, nil)), 3)
}

func TestUsers(t *testing.T) {
	f := parseString(t, "policy: [{match: {users: [redis, 7, redis]}, action: accelerate}]\n")
	require.Equal(t, []uint32{999, 7, 999}, f.Config.Policy[0].Match.UIDs())
	_, err := lookupUser("root")
	require.NoError(t, err)
	_, err = lookupUser("no such user")
	require.EqualError(t, err, `user "no such user" is not in /etc/passwd: any user can be given by number`)
}

func TestNeverPorts(t *testing.T) {
	c := parseString(t, `
metrics: { listen: "127.0.0.1:9469" }
policy:
  - { match: { ports: [22, 80] }, action: accelerate }
  - { match: { ports: [53] } }
`).Config
	require.Equal(t, []uint16{22, 53, 179, 2379, 6443, 10250, 4790, 4791, 4793, 9469}, c.NeverPorts(), "exceptions are made by rule")
	c = parseString(t, "datagram_port: 4800\nsoft: { udp_port: 4801 }\n").Config
	require.Equal(t, []uint16{22, 53, 179, 2379, 6443, 10250, 4790, 4791, 4800, 4801, 4803}, c.NeverPorts())
	c = parseString(t, "datagram_port: 0\n").Config
	require.Equal(t, []uint16{22, 53, 179, 2379, 6443, 10250, 4790, 4791, 4793}, c.NeverPorts())
}

func TestBytesText(t *testing.T) {
	for text, want := range map[string]Bytes{"0": 0, "1": 1, "12 KiB": 12 * KiB, "3MiB": 3 * MiB, "7B": 7, "8191PiB": -1, "": -1, "-1": -1, "1.5GiB": -1, "KiB": -1, "8388608TiB": -1} {
		var b Bytes
		err := b.setText(text)
		if want < 0 {
			require.Error(t, err, text)
			continue
		}
		require.NoError(t, err, text)
		require.Equal(t, want, b, text)
	}
	for b, want := range map[Bytes]string{0: "0", 1023: "1023", 1024: "1KiB", 1025: "1025", GiB: "1GiB", 1536 * MiB: "1536MiB", 2 * TiB: "2TiB"} {
		require.Equal(t, want, b.String())
	}
}

func TestDerived(t *testing.T) {
	require.Equal(t, time.Hour, Config{}.WithDefaults().Fallback.Blackholed())
	for class, level := range map[uint8]uint8{0: 0, 31: 0, 104: 3, 255: 7} {
		require.Equal(t, level, HW{TrafficClass: class}.ServiceLevel(), class)
	}
}

func TestLoops(t *testing.T) {
	for _, c := range []struct{ shards, processors, want int }{
		{0, 1, 1}, {0, 2, 1}, {0, 7, 3}, {0, 32, 16}, {0, 34, 16}, {0, 512, 16}, {1, 64, 1}, {5, 2, 5}, {16, 4, 16},
	} {
		require.Equal(t, c.want, Config{Shards: c.shards}.Loops(c.processors), "%+v", c)
	}
}

func TestSpin(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 0, "spin: ~": 0, "spin: off": 0, "spin: 'off'": 0, "spin: 0": 0, "spin: 0s": 0, "spin: 7us": 7 * time.Microsecond, "spin: 100µs": 100 * time.Microsecond,
	} {
		f := parseString(t, "in_process: {"+text+"}")
		require.Equal(t, want, f.Config.InProcess.Spin.Duration(), text)
		out, err := f.YAML()
		require.NoError(t, err)
		require.Equal(t, f.Config.InProcess.Spin, parseString(t, string(out)).Config.InProcess.Spin, "%s", out)
	}
	require.ErrorContains(t, validated(Config{InProcess: InProcess{Spin: -2}}.WithDefaults()), "in_process.spin: ")
	for _, text := range []string{"fast", "-1us", "20"} {
		_, err := parseConfig("f", []byte("in_process: {spin: "+text+"}"), testUsers)
		require.ErrorContains(t, err, "is neither off nor a duration such as 20us", text)
	}
}

func TestServicesOf(t *testing.T) {
	peers := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
	c := Config{Policy: []Rule{
		{Match: Match{Ports: Ports(22)}, Action: report.ActionPass},
		{Match: Match{Ports: Ports(8080), Direction: report.DirectionServer}, Action: report.ActionAccelerate},
		{Match: Match{Proto: report.ProtoUDP, Ports: Ports(53)}, Action: report.ActionAccelerate},
		{Match: Match{Ports: Ports(6379, 22), Peers: peers}, Action: report.ActionAccelerate},
		{Match: Match{Ports: append(Ports(6379, 5201), newPortRange(6000, 6001))}, Action: report.ActionAuto},
		{Action: report.ActionAccelerate},
	}}.WithDefaults()
	services := func(addr string) (ports []uint16) {
		for _, s := range c.ServicesOf(netip.MustParseAddr(addr)) {
			ports = append(ports, s.Port())
		}
		return ports
	}
	require.Equal(t, []uint16{6379, 5201}, services("10.0.0.9"))
	require.Equal(t, []uint16{6379, 5201}, services("::ffff:10.0.0.9"))
	require.Equal(t, []uint16{6379, 5201}, services("fd00::1"))
	whole := c.Policy
	c.Policy = append([]Rule{{Match: Match{Peers: peers}, Action: report.ActionPass}}, whole...)
	require.Empty(t, services("10.0.0.9"), "an earlier rule passes all of the host")
	require.Equal(t, []uint16{6379, 5201}, services("10.0.1.9"))
	c.Policy[0].Match.Users = []User{{ID: 7}}
	require.Equal(t, []uint16{6379, 5201}, services("10.0.0.9"), "of a user")
	c.Policy = whole
	for port := range uint16(30) {
		c.Policy = append(c.Policy, Rule{Match: Match{Ports: Ports(7000 + port)}, Action: report.ActionAccelerate})
	}
	require.Len(t, services("10.0.1.1"), maxServicesOf)
}

func TestRolloutTexts(t *testing.T) {
	for text, want := range map[string]string{"10": "10%", "0": "0%", "0.25%": "0.25%", "12.5": "12.5%", "100%": "100%"} {
		require.Equal(t, want, parseString(t, "rollout: {percent: "+text+"}").Config.Rollout.Percent.String(), text)
	}
	for _, text := range []string{"", "x", "-1", "NaN", "1e9", "%"} {
		_, err := ParseShare(text)
		require.Error(t, err, text)
	}
	s, err := ParseShare("0")
	require.NoError(t, err)
	require.Equal(t, NoShare, s)
}

func TestPartOfSomething(t *testing.T) {
	require.Equal(t, 1, Share(1*percent).Of(10))
	require.Equal(t, 7, Share(70*percent).Of(10))
	require.Equal(t, 1<<40, AllShare.Of(1<<40))
}

// TestReference: docs/reference/configuration.md is the table of fields.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Configuration fields\n\n" +
		"Generated from `gateway/config/fields.go` by `make docs`. `smcgw check -c FILE` prints the effective values and their origin.\n" +
		"The file is YAML, read strictly: an unknown field is an error with its line. Every field is optional. `[]` is an element of a list.\n\n" +
		"| field | default | meaning |\n|---|---|---|\n")
	for i, f := range configFields {
		if i+1 < len(configFields) && strings.HasPrefix(configFields[i+1].Path, f.Path+".") {
			continue // its fields tell
		}
		value := ""
		if f.Default != "" {
			value = "`" + f.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Path, value, f.Doc)
	}
	golden.Page(t, "docs/reference/configuration.md", b.String())
}

func TestDatagramPort(t *testing.T) {
	for text, want := range map[string]uint16{"": 4790, "datagram_port:": 4790, "datagram_port: 0": 0, "datagram_port: 7": 7} {
		f := parseString(t, text)
		require.Equal(t, want, f.Config.DatagramPort.Port(), text)
		out, err := f.YAML()
		require.NoError(t, err)
		require.Equal(t, want, parseString(t, string(out)).Config.DatagramPort.Port(), "%s", out)
	}
	require.Equal(t, NoPort, Config{DatagramPort: NoPort}.WithDefaults().DatagramPort)
	require.NoError(t, validated(Config{DatagramPort: NoPort}.WithDefaults()))
	require.ErrorContains(t, validated(Config{DatagramPort: -2}.WithDefaults()), "datagram_port: -2 is not between 1 and 49151")
}

func TestDatagramsOfTheGatewayItselfAreNeverCarried(t *testing.T) {
	for _, text := range []string{
		"policy: [{match: {proto: udp, ports: [53, 4790]}, action: accelerate}]",
		"policy: [{match: {proto: udp, ports: [53, 4791]}, action: auto}]",
		"policy: [{match: {proto: udp, ports: [53, 4793]}, action: accelerate}]",
		"datagram_port: 9\npolicy: [{match: {proto: udp, ports: [53, 9]}, action: accelerate}]",
	} {
		_, err := parseConfig("f", []byte(text), testUsers)
		require.ErrorContains(t, err, "policy[0].match.ports[1]: ", text)
		require.ErrorContains(t, err, "is a port of the gateway itself", text)
	}
	parseString(t, "policy: [{match: {proto: udp, ports: [4790]}}, {match: {ports: [4790]}, action: accelerate}]")
}

func TestNamesDatagramPeer(t *testing.T) {
	c := parseString(t, `
policy:
  - { match: { proto: udp, peers: [10.0.0.0/24] } }
  - { match: { peers: [10.0.1.0/24] }, action: accelerate }
  - { match: { proto: udp, peers: [10.0.2.0/24, "fd00::/64"] }, action: accelerate }
  - { match: { proto: udp }, action: accelerate }
`).Config
	for text, want := range map[string]bool{
		"10.0.0.1": false, "10.0.1.1": false, "10.0.2.1": true, "::ffff:10.0.2.1": true, "fd00::1": true, "fd01::1": false,
	} {
		require.Equal(t, want, c.NamesDatagramPeer(netip.MustParseAddr(text)), text)
	}
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
