package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// world is a test network. Its hosts h1 and h2 can run gateways; h3 is a plain host.
type world struct {
	t          *testing.T
	net        *testnet.Network
	h1, h2, h3 *testnet.Host
	dir        string
	gateways   map[*testnet.Host]*gw
	via        report.Carrier // the carrier that this test wants
	program    string         // what runs as smcgw instead of binary; it starts binary
}

// newWorld builds a network for one test.
func newWorld(t *testing.T, cfg testnet.Config) *world {
	t.Helper()
	testnet.Require(t, "root", "bpf")
	v, dir := variantOf(t), shortDir(t)
	n := testnet.Start(t, cfg)
	w := &world{
		t: t, net: n, h1: n.Host("h1"), h2: n.Host("h2"), h3: n.Host("h3"),
		dir: dir, gateways: map[*testnet.Host]*gw{}, via: v.via,
	}
	require.NoError(t, n.SetBox(v.box))
	return w
}

// newServed builds a world with the test servers on h2.
func newServed(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, testnet.Config{})
	w.serve(w.h2)
	return w
}

// shortDir makes a directory whose name is short enough for sockets, however long the test's name is.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "smcgw-net-") //nolint:usetesting // short: there are sockets in it
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// quick is the default of limits.handshake_timeout, for tests in which it expires. Other tests give a busy machine
// more time.
const quick = "200ms"

// slownessVariable names the environment variable that says how many times slower than others this machine is,
// because it is emulated.
const slownessVariable = "SMCGW_SLOWNESS"

func slowness() int {
	n, err := strconv.Atoi(os.Getenv(slownessVariable))
	if err != nil {
		return 1
	}
	return max(n, 1)
}

// slowed returns how long this machine may take for what takes others d.
func slowed(d time.Duration) time.Duration { return time.Duration(slowness()) * d }

// settings are what tests vary in the configuration of a gateway.
type settings struct {
	Mode          string
	Ports         string
	Peers         string
	Carriers      string
	MaxFlows      int
	Memory        string
	Handshake     string
	AtOnce        int // connections being set up at once; 0: the most that may be configured
	NegativeCache string
	Policy        string // lines before the rule named test
	Devices       string
	ShmDir        string // relative to the test's directory
	Extra         string
	InProcess     string // follows the path of the socket
	Log           string
	Env           []string // of the gateway, NAME=value
}

var configTemplate = template.Must(template.New("config").Parse(`schema: smcgw/v1
mode: {{.S.Mode}}
admin: {{.Dir}}/{{.Name}}.sock
devices: [{{.S.Devices}}]
policy:
{{.S.Policy}}  - { name: test, match: { ports: [{{.S.Ports}}], peers: [{{.S.Peers}}] }, action: accelerate }
  - { name: default, action: pass }
carriers: [{{.S.Carriers}}]
shm_dir: {{.Dir}}/{{.S.ShmDir}}
state_dir: {{.Dir}}/{{.Name}}.state
{{.InProcess}}limits: { max_flows: {{.S.MaxFlows}}, memory: {{.S.Memory}}, handshake_timeout: {{.S.Handshake}}, new_flows_at_once: {{.S.AtOnce}} }
fallback: { negative_cache: {{.S.NegativeCache}} }
log: {{.S.Log}}
{{.S.Extra}}`))

// Ports of the test applications. All but plainPort are in the policy.
const (
	echoPort     = 7000
	transferPort = 7001
	firstPort    = 7002
	rstPort      = 7003
	closePort    = 7004
	holdPort     = 7005
	sinkPort     = 7006
	redisPort    = 6379
	iperfPort    = 5201
	deadPort     = 7099 // no listener
	plainPort    = 8000 // not in the policy
)

func (s settings) withDefaults(via report.Carrier) settings {
	set := func(field *string, v string) {
		if *field == "" {
			*field = v
		}
	}
	set(&s.Mode, "enforce")
	set(&s.Ports, "7000, 7001, 7002, 7003, 7004, 7005, 7006, 7099, 6379, 5201")
	set(&s.Peers, `10.77.0.0/16, "fd77::/16"`)
	set(&s.Carriers, strings.TrimPrefix(string(via), "rdma-"))
	set(&s.ShmDir, "shm")
	set(&s.Devices, "eth0")
	set(&s.Memory, "1GiB")
	set(&s.Handshake, slowed(2*time.Second).String()) // tests of the deadline use the default, which is quick
	set(&s.NegativeCache, "10m")
	set(&s.Log, "{ level: debug, format: text }")
	if rdmaPort != 4791 && !strings.Contains(s.Extra, "soft:") {
		s.Extra += fmt.Sprintf("soft: { udp_port: %d }\n", rdmaPort)
	}
	if s.MaxFlows == 0 {
		s.MaxFlows = 20000
	}
	if s.AtOnce == 0 {
		s.AtOnce = 1024
	}
	return s
}

// gw is a running gateway: guardian and daemon.
type gw struct {
	w      *world
	h      *testnet.Host
	proc   *testnet.Proc
	socket string
	config string
	log    string // the file that it logs to, if not to its pipes
}

// up starts a gateway on a host and waits until it handles connections.
func (w *world) up(h *testnet.Host, s settings) *gw {
	w.t.Helper()
	g := w.launch(h, s)
	g.ready()
	return g
}

// upBoth starts the gateways of h1 and h2 at the same time.
func (w *world) upBoth(s settings) (g1, g2 *gw) {
	w.t.Helper()
	g1, g2 = w.launch(w.h1, s), w.launch(w.h2, s)
	g1.ready()
	g2.ready()
	return g1, g2
}

// inProcess returns the socket at which a host's gateway serves programs with the library.
func (w *world) inProcess(h *testnet.Host) string {
	return filepath.Join(w.dir, h.Name+".in-process.sock")
}

// write writes the configuration of a gateway.
func (w *world) write(g *gw, s settings) {
	w.t.Helper()
	var b bytes.Buffer
	inProcess := ""
	if !strings.Contains(s.Extra, "in_process:") {
		inProcess = fmt.Sprintf("in_process: { socket: %s%s }\n", w.inProcess(g.h), s.InProcess)
	}
	require.NoError(w.t, configTemplate.Execute(&b, map[string]any{"S": s.withDefaults(w.via), "Dir": w.dir, "Name": g.h.Name, "InProcess": inProcess}))
	require.NoError(w.t, os.WriteFile(g.config, b.Bytes(), 0o600))
}

// configure writes the configuration of a gateway that is not running yet.
func (w *world) configure(h *testnet.Host, s settings) *gw {
	w.t.Helper()
	g := &gw{w: w, h: h, socket: filepath.Join(w.dir, h.Name+".sock"), config: filepath.Join(w.dir, h.Name+".yaml")}
	w.write(g, s)
	w.gateways[h] = g
	return g
}

// launch starts a gateway without waiting for it.
func (w *world) launch(h *testnet.Host, s settings) *gw {
	w.t.Helper()
	g := w.configure(h, s)
	p, err := h.Start(w.current(nil), "up", "-c", g.config)
	require.NoError(w.t, err)
	g.proc = p
	w.t.Cleanup(func() {
		require.NotContains(w.t, p.Output(), "DATA RACE", "gateway of %s", h.Name) // SMCGW_RACE=1
		if w.t.Failed() {
			w.t.Logf("gateway of %s:\n%s", h.Name, tail(p.Output(), 12000))
		}
	})
	return g
}

func tail(s string, n int) string {
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}

// ready waits until the gateway beats and answers.
func (g *gw) ready() {
	g.w.t.Helper()
	ctx, cancel := context.WithTimeout(g.w.t.Context(), slowed(30*time.Second))
	defer cancel()
	if err := g.proc.WaitOutput(ctx, "gateway is up"); err != nil {
		g.w.t.Fatalf("gateway of %s does not come up: %v\n%s", g.h.Name, err, g.proc.Output())
	}
	// The programs must have seen a beat before the first SYN.
	require.Eventually(g.w.t, func() bool {
		_, err := g.client().Status(ctx)
		return err == nil
	}, slowed(30*time.Second), 10*time.Millisecond)
	time.Sleep(100 * time.Millisecond)
}

// stop ends the gateway in order.
func (g *gw) stop() {
	g.w.t.Helper()
	require.NoError(g.w.t, g.proc.Stop(slowed(30*time.Second)))
}

func (g *gw) client() *admin.Client {
	c := admin.NewClient(g.socket)
	g.w.t.Cleanup(c.Close)
	return c
}

// cli runs a client verb as an operator does, and returns its output.
func (g *gw) cli(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(g.w.t.Context(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, g.w.current(nil), append(args, "--socket", g.socket)...).CombinedOutput()
	return string(out), err
}

// says runs a client verb that must succeed, and returns its output.
func (g *gw) says(args ...string) string {
	g.w.t.Helper()
	out, err := g.cli(args...)
	require.NoError(g.w.t, err, out)
	return out
}

// cliJSON runs a client verb with --json, which must succeed, and decodes its output.
func (g *gw) cliJSON(v any, args ...string) {
	g.w.t.Helper()
	out, err := g.cli(append(args, "--json")...)
	require.NoError(g.w.t, err, out)
	require.NoError(g.w.t, json.Unmarshal([]byte(out), v), out)
}

// asks queries the gateway without a process of its own. Tests poll by it: on an emulated machine a process takes a
// second.
func asks[T any](g *gw, question func(*admin.Client, context.Context) (T, error)) T {
	g.w.t.Helper()
	ctx, cancel := context.WithTimeout(g.w.t.Context(), 30*time.Second)
	defer cancel()
	c := admin.NewClient(g.socket)
	defer c.Close()
	answer, err := question(c, ctx)
	require.NoError(g.w.t, err)
	return answer
}

func (g *gw) status() report.Status {
	g.w.t.Helper()
	return asks(g, (*admin.Client).Status)
}

// conns lists the live connections. With the flags of smcgw conns it adds recent native ones (--all) or lists past
// ones (--closed).
func (g *gw) conns(flags ...string) []report.ConnInfo {
	g.w.t.Helper()
	q := report.ConnQuery{All: slices.Contains(flags, "--all"), Closed: slices.Contains(flags, "--closed")}
	return asks(g, func(c *admin.Client, ctx context.Context) (admin.ConnList, error) { return c.Conns(ctx, q) }).Conns
}

// closedConn waits for a carried connection in the history.
func (g *gw) closedConn(match func(report.ConnInfo) bool) report.ConnInfo {
	g.w.t.Helper()
	return g.awaitConn("closed", match, "--closed")
}

// awaitConn waits for a connection in one of the lists.
func (g *gw) awaitConn(what string, match func(report.ConnInfo) bool, list string) report.ConnInfo {
	g.w.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, c := range g.conns(list) {
			if match(c) {
				return c
			}
		}
	}
	require.FailNow(g.w.t, "no "+what+" connection as wanted", g.dump())
	return report.ConnInfo{}
}

func (g *gw) dump() string {
	all, _ := g.cli("conns", "--all")
	closed, _ := g.cli("conns", "--closed")
	return fmt.Sprintf("%s: conns --all\n%s\nconns --closed\n%s", g.h.Name, all, closed)
}

// from matches the connection whose ports and addresses an event of the client has.
func from(e apps.Event) func(report.ConnInfo) bool {
	return func(c report.ConnInfo) bool {
		return c.Local.String() == e.Local && c.Remote.String() == e.Remote
	}
}

// at matches the same connection on the server's host.
func at(e apps.Event) func(report.ConnInfo) bool {
	return func(c report.ConnInfo) bool {
		return c.Local.String() == e.Remote && c.Remote.String() == e.Local
	}
}

// serve starts the test servers on a host, on both families.
func (w *world) serve(h *testnet.Host) *testnet.Proc {
	w.t.Helper()
	p, err := h.StartApp("serve",
		fmt.Sprintf("echo=[::]:%d", echoPort), fmt.Sprintf("transfer=[::]:%d", transferPort),
		fmt.Sprintf("first=[::]:%d", firstPort), fmt.Sprintf("rst=[::]:%d", rstPort),
		fmt.Sprintf("close=[::]:%d", closePort), fmt.Sprintf("hold=[::]:%d", holdPort),
		fmt.Sprintf("sink=[::]:%d", sinkPort), fmt.Sprintf("echo=[::]:%d", plainPort))
	require.NoError(w.t, err)
	return p
}

// app runs a client app to its end and returns its result, failed or not.
func (w *world) app(h *testnet.Host, timeout time.Duration, args ...string) (apps.Event, error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), timeout)
	defer cancel()
	return h.RunApp(ctx, args...)
}

// mustApp is app for clients that have to succeed.
func (w *world) mustApp(h *testnet.Host, args ...string) apps.Event {
	w.t.Helper()
	e, err := w.app(h, 2*time.Minute, args...)
	require.NoError(w.t, err, "%v: %+v", args, e)
	require.Zero(w.t, e.Failed, "%v: %+v", args, e)
	return e
}

// families runs a test for IPv4 and IPv6.
func families(t *testing.T, fn func(t *testing.T, addr func(h *testnet.Host, port uint16) string)) {
	t.Helper()
	inFamily(t, "ipv4", fn)
	inFamily(t, "ipv6", fn)
}

// oneFamily is families for a slow test: one of the two families, both in whole matrices.
func oneFamily(t *testing.T, fn func(t *testing.T, addr func(h *testnet.Host, port uint16) string)) {
	t.Helper()
	for _, name := range matrix.Cells(t, []string{"ipv4", "ipv6"}, 1) {
		inFamily(t, name, fn)
	}
}

func inFamily(t *testing.T, name string, fn func(t *testing.T, addr func(h *testnet.Host, port uint16) string)) {
	t.Helper()
	addr := (*testnet.Host).AddrPort4
	if name == "ipv6" {
		addr = (*testnet.Host).AddrPort6
	}
	t.Run(name, func(t *testing.T) {
		fn(t, func(h *testnet.Host, port uint16) string { return addr(h, port).String() })
	})
}

// carriedBy requires that both gateways report that the connection was carried by c and closed in order.
func (w *world) carriedBy(e apps.Event, c report.Carrier) {
	w.t.Helper()
	for h, match := range map[*testnet.Host]func(report.ConnInfo) bool{w.h1: from(e), w.h2: at(e)} {
		info := w.gateways[h].closedConn(match)
		require.Equal(w.t, c, info.Carrier, "%s: %+v", h.Name, info)
		require.Equal(w.t, report.EndClosed, info.End, "%s: %+v", h.Name, info)
	}
}
