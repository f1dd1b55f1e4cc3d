package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// hostKind is a kind of host that people run: with the rules of a firewall, of a container engine, of a cluster's node.
type hostKind struct {
	name   string
	needs  []string // that it needs
	kernel string   // a file that exists on suitable kernels
	sides  []string // which hosts can have the rules
	// build loads the rules into the hosts that have them, starts servers, and returns what can be reached.
	build func(*hostCell) []target
}

const (
	clientSide = "client"
	serverSide = "server"
	bothSides  = "both"
)

// hostCell is one kind of host, on one side, over one carrier.
type hostCell struct {
	*world
	kind hostKind
	side string
	pod  *testnet.Host // behind the server's host, if the kind has one
	// controls check, after the native connections, that the rules of the kind took effect.
	controls []func()
	tally
	problems []string
}

// target is something a client connects to. Its texts are templates of family.
type target struct {
	name string
	to   string // address; by default the server's
	port int
	bind string // the client's address; by default its own
	want string // the outcome by which the kind of host matters
	// anyPort says that a translation chooses the port that the server sees.
	anyPort bool
	// alone is the reason that the server's gateway must report for connections to the target, if they are native
	// with gateways, too.
	alone string
}

// outcome returns the outcome of an observation without what is random.
func (t target) outcome(o apps.Event) string {
	if t.anyPort {
		return strings.Replace(o.Outcome(), " by another port", "", 1)
	}
	return o.Outcome()
}

// silent tells whether there is natively no answer.
func (t target) silent() bool { return t.want == "connect: GAVE_UP" }

func (t target) fails() bool { return strings.HasPrefix(t.want, "connect: ") }

// sampledHosts is how many cells a run draws.
const sampledHosts = 6

// TestFaultHosts checks that smcgw changes nothing that an application observes, on any kind of host: the same server
// answers, sees the same address and gets every byte, or the same error comes, and connect() takes as long. A run
// draws some cells; make faults runs all. Kinds that this kernel cannot be run in the guest of tests/interop.
func TestFaultHosts(t *testing.T) {
	t.Parallel()
	var cells []*hostCell
	for _, kind := range hostKinds() {
		if !kind.possible() && !testnet.Required("kernel") {
			t.Logf("not with this kernel: %s", kind.name)
			continue
		}
		for _, side := range kind.sides {
			for _, via := range []report.Carrier{report.CarrierShm, report.CarrierSoft} {
				cells = append(cells, &hostCell{kind: kind, side: side, world: &world{via: via}})
			}
		}
	}
	for _, c := range matrix.Cells(t, cells, sampledHosts) {
		name := strings.Join([]string{c.kind.name, c.side, strings.TrimPrefix(string(c.via), "rdma-")}, "-")
		t.Run(name, c.test)
	}
}

// possible tells whether a host with this kernel can be of the kind.
func (k hostKind) possible() bool {
	if k.kernel == "" {
		return true
	}
	_, err := os.Stat(k.kernel)
	return err == nil
}

func (c *hostCell) test(t *testing.T) {
	testnet.Require(t, append([]string{"root", "bpf"}, c.kind.needs...)...)
	via := c.via
	c.world = newWorld(t, testnet.Config{})
	c.via = via
	t.Cleanup(func() { t.Log(&c.tally) })
	require.NoError(t, c.h1.AddAddress(prefix("10.77.0.101/24")))
	require.NoError(t, c.h1.AddAddress(prefix("fd77::101/64")))
	for _, h := range c.net.Hosts() { // otherwise the second refusal in a row comes late, also natively
		c.sysctl(h, "net.ipv4.icmp_ratelimit", "0")
		c.sysctl(h, "net.ipv6.icmp.ratelimit", "0")
	}
	targets := c.kind.build(c)

	native := c.natively(targets)
	for _, control := range c.controls {
		control()
	}
	c.start()
	c.compare(withGateways, targets, native)
	c.tellWhy(targets)
	c.report()
	for _, g := range c.gateways {
		g.says("off")
	}
	c.compare(switchedOff, targets, native)
	if len(c.problems) > 0 {
		t.Errorf("%d differences:\n%s", len(c.problems), strings.Join(c.problems, "\n"))
	}
}

// When a comparison is made.
const (
	withGateways = "with gateways"
	switchedOff  = "switched off"
)

// has tells whether a host has the rules of the kind.
func (c *hostCell) has(h *testnet.Host) bool {
	return c.side == bothSides || (h == c.h1) == (c.side == clientSide)
}

// those returns the hosts that have the rules.
func (c *hostCell) those() (all []*testnet.Host) {
	for _, h := range []*testnet.Host{c.h1, c.h2} {
		if c.has(h) {
			all = append(all, h)
		}
	}
	return all
}

// behind makes a host behind the server's, with a server of its own.
func (c *hostCell) behind(ports ...int) {
	c.t.Helper()
	var err error
	c.pod, err = c.net.Behind(c.h2, "pod")
	require.NoError(c.t, err)
	c.serves(c.pod, "pod", ports...)
}

// serves starts a server with a name on some ports.
func (c *hostCell) serves(h *testnet.Host, tag string, ports ...int) {
	c.t.Helper()
	args := []string{"serve", "-quiet", "-tag", tag}
	for _, p := range ports {
		args = append(args, fmt.Sprintf("transfer=[::]:%d", p))
	}
	_, err := h.StartApp(args...)
	require.NoError(c.t, err)
}

// forwards starts a proxy.
func (c *hostCell) forwards(h *testnet.Host, cmd *testnet.Cmd) {
	c.t.Helper()
	p, err := h.StartCmd(cmd)
	require.NoError(c.t, err)
	require.NoError(c.t, p.WaitOutput(patience(c.t), `"event":"listening"`))
}

// appsProgram returns the path of the static program of package apps.
func appsProgram(t *testing.T) string {
	t.Helper()
	path, err := builtApps()
	require.NoError(t, err)
	return path
}

var builtApps = sync.OnceValues(func() (string, error) {
	path := filepath.Join(filepath.Dir(built), "apps")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "github.com/smcgw/smcgw/lab/apps/program")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build apps: %w\n%s", err, out)
	}
	return path, nil
})

// handshakeTimeout is the default of limits.handshake_timeout.
const handshakeTimeout = 200 * time.Millisecond

// start starts the gateways as operators do, with defaults for everything but the ports and the peers.
func (c *hostCell) start() {
	s := settings{
		Handshake: slowed(handshakeTimeout).String(),
		Ports:     "7000, 7001, 7003, 7004, 7005, 7009, 7010, 7098",
		Peers:     `0.0.0.0/0, "::/0"`,
		Devices:   " ", // as in most configurations: by the routes
	}
	g1, g2 := c.launch(c.h1, s), c.launch(c.h2, s)
	g1.ready()
	g2.ready()
}

// restart restarts the gateways, so that connections are the first ones again.
func (c *hostCell) restart() {
	var all sync.WaitGroup
	for _, h := range []*testnet.Host{c.h1, c.h2} {
		g := c.gateways[h]
		all.Go(func() { _ = g.proc.Stop(slowed(30 * time.Second)) })
	}
	all.Wait()
	c.start()
}

// call is one target in one family.
type call struct {
	target
	family
}

func (c call) String() string { return fmt.Sprintf("%s, %s", c.name, c.IP) }

// destination returns the address that the client connects to.
func (c call) destination(t *testing.T) string {
	t.Helper()
	if c.to == "" {
		return c.Dest(c.Server, c.port)
	}
	return c.Dest(c.words(t, c.to), c.port)
}

func (c *hostCell) calls(targets []target) (all []call) {
	for _, t := range targets {
		for _, f := range c.families() {
			all = append(all, call{t, f})
		}
	}
	return all
}

const (
	// patient is when a connection counts as hanging, and impatient how long a client waits for an answer that does
	// not come natively.
	patient   = 6 * time.Second
	impatient = 1300 * time.Millisecond
)

// visits runs a client.
func (c *hostCell) visits(k call, count int) ([]apps.Event, error) {
	args := []string{"visit", "-to", k.destination(c.t), "-limit", slowed(patient).String(), "-budget", slowed(15 * time.Second).String()}
	connect := slowed(patient)
	if k.fails() {
		count = min(count, failedVisits)
	}
	if slowness() > 1 {
		count = min(count, manyVisits/slowness())
	}
	if k.silent() {
		connect, count = impatient, 1
	}
	if k.bind != "" {
		args = append(args, "-bind", k.Dest(k.words(c.t, k.bind), 0))
	}
	args = append(args, "-count", fmt.Sprint(count), "-timeout", connect.String())
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	e, err := c.h1.RunApp(ctx, args...)
	for _, o := range e.Visits {
		failed := int64(o.Failed)
		if k.fails() {
			failed = 0
		}
		c.add(1, o.Sent+o.Received, failed)
	}
	return e.Visits, err
}

// How many connections are made in a row. failedVisits is for those that fail natively, some of which take a second
// each.
const (
	manyVisits    = 100
	severalVisits = 10
	failedVisits  = 3
)

// natively visits all targets without gateways. Every control must show that the kind of host took effect.
func (c *hostCell) natively(targets []target) map[string][]apps.Event {
	c.t.Helper()
	all := map[string][]apps.Event{}
	for _, k := range c.calls(targets) {
		want := k.words(c.t, k.want)
		if !k.silent() { // engines need a moment to set up containers' addresses
			got := ""
			for end := time.Now().Add(time.Minute); got != want && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				seen, err := c.visits(k, 1)
				require.NoError(c.t, err)
				got = k.outcome(seen[0])
			}
			require.Equal(c.t, want, got, "%v, natively", k)
		}
		seen, err := c.visits(k, manyVisits)
		require.NoError(c.t, err)
		for i, o := range seen {
			require.Equal(c.t, want, k.outcome(o), "%v, native connection %d", k, i)
		}
		all[k.String()] = seen
	}
	return all
}

// report logs what the gateways report. Whether anything is carried is not tested here.
func (c *hostCell) report() {
	for _, h := range []*testnet.Host{c.h1, c.h2} {
		s := c.gateways[h].status()
		reasons := []string{}
		for _, r := range slices.Sorted(maps.Keys(s.FallbacksTotal)) {
			if n := s.FallbacksTotal[r]; n > 0 {
				reasons = append(reasons, fmt.Sprintf("%s %d", r, n))
			}
		}
		c.t.Logf("%s carried %d by %s, relayed %d, native: %s", h.Name, s.FlowsTotal[c.via], c.via,
			s.FlowsTotal[report.CarrierRelay], strings.Join(reasons, ", "))
	}
}
