package interop

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/tests/interop/guest"
	"github.com/smcgw/smcgw/tests/interop/guest/remote"
)

// adapterConfig is the configuration of a gateway that carries on adapters only. An emulated machine needs more time
// for handshakes, so the gateway sets up an eighth of what it may at once.
const adapterConfig = `schema: smcgw/v1
mode: enforce
admin: /run/admin.sock
devices: [eth0]
policy:
  - { name: test, match: { ports: [%s] }, action: accelerate }
%scarriers: [%s]
shm_dir: /run/shm
state_dir: /run/state
limits: { memory: 512MiB, handshake_timeout: 10s, new_flows_at_once: 256%s }
fallback: { negative_cache: 1s }
%s`

// adapterSettings are the differences of a configuration from the usual one, which is the zero value.
type adapterSettings struct {
	rule     string // further rules of the policy
	carriers string // default: hw
	limits   string // further limits
	more     string // further lines of the configuration
}

// text returns the configuration.
func (s adapterSettings) text() string {
	if s.carriers == "" {
		s.carriers = "hw"
	}
	var ports []string
	for _, p := range []uint16{echoPort, transferPort, redisPort, iperfPort, webPort, talkPort} {
		ports = append(ports, fmt.Sprint(p))
	}
	return fmt.Sprintf(adapterConfig, strings.Join(ports, ", "), s.rule, s.carriers, s.limits, s.more)
}

// adapterPair is two guests on one network, each with rdma_rxe, a gateway and the test servers. Clients run in the
// first one.
type adapterPair struct {
	host  *testnet.Tapped
	image guest.Image
	files map[string]string
	guest [2]*guest.Guest
	last  [2]*remote.Process // the gateway that was last started in each guest
	used  bool               // a part has begun and has not finished
}

func newAdapterPair(ctx context.Context, t *testing.T) *adapterPair {
	testnet.Require(t, "vm", "bpf", "apt-get", "dpkg-deb", "xz", "zstd", "gcc")
	img, err := guest.Build(ctx, guest.Linux612)
	require.NoError(t, err)
	p := &adapterPair{image: img, files: map[string]string{}}
	dir := t.TempDir()
	for path, cgo := range map[string]string{guestProgram: "1", guestApps: "0"} {
		file := filepath.Join(dir, filepath.Base(path))
		build(ctx, t, cgo, "build", "-o", file, "github.com/smcgw/smcgw/cmd/"+filepath.Base(path))
		p.files[path] = file
	}
	maps.Copy(p.files, ringPrograms(ctx, t))
	p.host, err = testnet.NewTapped(1500)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.host.Close()) })
	require.NoError(t, p.host.AddSecond(1500))
	for i := range p.guest {
		p.boot(ctx, t, i)
	}
	t.Cleanup(func() {
		for i, g := range p.guest {
			if t.Failed() {
				t.Logf("console of guest %d:\n%s", i, g.Console())
			}
			require.NoError(t, g.Close())
		}
	})
	return p
}

// boot starts a guest and its servers.
func (p *adapterPair) boot(ctx context.Context, t *testing.T, i int) {
	t.Helper()
	g, err := guest.Boot(ctx, p.host, p.image, guest.Config{Files: p.files, Second: i == 1, Memory: 1536})
	require.NoError(t, err)
	p.guest[i] = g
	serveIn(ctx, t, g)
}

// ready restores the pair to its initial state. After a failed part or a kernel crash it restarts the guests.
func (p *adapterPair) ready(ctx context.Context, t *testing.T) {
	t.Helper()
	for i, g := range p.guest {
		if p.used || g.Ended() {
			require.NoError(t, g.Close())
			p.boot(ctx, t, i)
		}
	}
	p.used = true
}

// sh runs a script in a guest, which must succeed, and returns what it prints.
func (p *adapterPair) sh(ctx context.Context, t *testing.T, i int, script string) string {
	t.Helper()
	out, err := p.guest[i].Run(ctx, "sh", "-c", script)
	require.NoError(t, err)
	return out
}

// up starts the gateways of both guests.
func (p *adapterPair) up(ctx context.Context, t *testing.T, s adapterSettings) {
	t.Helper()
	for i := range p.guest {
		p.gateway(ctx, t, i, s)
	}
}

// gateway starts the gateway of one guest, through a command that gets its command line. Emulated processors have
// little time, so the gateway has priority.
func (p *adapterPair) gateway(ctx context.Context, t *testing.T, i int, s adapterSettings, by ...string) *remote.Process {
	t.Helper()
	if len(by) == 0 {
		by = []string{"nice", "-n", "-20"}
	}
	p.last[i] = gatewayIn(ctx, t, p.guest[i], s.text(), by...)
	return p.last[i]
}

// ask runs a verb of a guest's gateway and decodes its document.
func (p *adapterPair) ask(ctx context.Context, t *testing.T, i int, into any, verb ...string) {
	t.Helper()
	askIn(ctx, t, p.guest[i], into, verb...)
}

func (p *adapterPair) status(ctx context.Context, t *testing.T, i int) (st report.Status) {
	t.Helper()
	p.ask(ctx, t, i, &st, "status")
	return st
}

// device returns the only device of a guest's gateway.
func (p *adapterPair) device(ctx context.Context, t *testing.T, i int) report.DeviceInfo {
	t.Helper()
	var devices admin.DeviceList
	p.ask(ctx, t, i, &devices, "devices")
	require.Len(t, devices.Devices, 1)
	return devices.Devices[0]
}

// becomes waits until the only device of a guest's gateway is in a state.
func (p *adapterPair) becomes(ctx context.Context, t *testing.T, i int, state report.DeviceState) {
	t.Helper()
	var now report.DeviceInfo
	require.Eventually(t, func() bool {
		now = p.device(ctx, t, i)
		return now.State == state
	}, 2*time.Minute, 500*time.Millisecond, "%s", state)
	t.Logf("device of guest %d: %s %s %s", i, now.Name, now.State, now.Error)
}

// conns returns the connections of a guest's gateway with a port of the other guest: the current ones, or what the
// flags ask for.
func (p *adapterPair) conns(ctx context.Context, t *testing.T, i int, port uint16, flags ...string) (list []report.ConnInfo) {
	t.Helper()
	var all admin.ConnList
	p.ask(ctx, t, i, &all, append([]string{"conns"}, flags...)...)
	for _, c := range all.Conns {
		if c.Remote.Port() == port {
			list = append(list, c)
		}
	}
	return list
}

// run runs one of the test programs in the first guest.
func (p *adapterPair) run(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	args = appInGuest(args...)
	out, err := p.guest[0].Run(ctx, args[0], args[1:]...)
	if err != nil {
		p.tell(t)
	}
	require.NoError(t, err, out)
	return out
}

// tell logs what both guests report after a failure.
func (p *adapterPair) tell(t *testing.T) {
	t.Helper()
	for i, g := range p.guest {
		for _, verb := range []string{"status", "conns --all", "devices", "stats"} {
			out, err := g.Run(patienceAfter(t, 20*time.Second), "sh", "-c", guestProgram+" "+verb+" --socket /run/admin.sock; ss -tnoe | head -40")
			t.Logf("guest %d, %s: %v\n%s", i, verb, err, out)
		}
		t.Logf("console of guest %d:\n%s", i, g.Console())
	}
}

// lastLine returns the last line of a program's output; lines before it may report progress.
func lastLine(out string) string {
	out = strings.TrimSpace(out)
	return out[strings.LastIndexByte(out, '\n')+1:]
}

// received returns how many packets rdma_rxe in a guest has received.
func (p *adapterPair) received(ctx context.Context, t *testing.T, i int) (n uint64) {
	t.Helper()
	out := p.sh(ctx, t, i, "cat /sys/class/infiniband/"+guest.Device+"/ports/1/hw_counters/rcvd_pkts")
	n, err := strconv.ParseUint(strings.TrimSpace(out), 10, 64)
	require.NoError(t, err)
	return n
}

// transferSize is how much a transfer moves each way.
const transferSize = 4 << 20

// transfer moves bytes both ways, which the programs compare, repeatedly until the adapters have carried all of them:
// an emulated machine may be too slow for a proof.
func (p *adapterPair) transfer(ctx context.Context, t *testing.T, to string) {
	t.Helper()
	size := fmt.Sprint(transferSize)
	for range 15 {
		before := p.status(ctx, t, 0).FlowsTotal[report.CarrierHW]
		p.run(ctx, t, "transfer", "-to", to, "-up", size, "-down", size)
		if p.status(ctx, t, 0).FlowsTotal[report.CarrierHW] > before {
			past := p.conns(ctx, t, 0, transferPort, "--closed")
			if len(past) == 0 || youngest(past).Demoted == "" {
				return
			}
			t.Logf("left the adapters: %+v", youngest(past))
			p.why(ctx, t)
		}
		time.Sleep(2 * time.Second)
	}
	t.Fatalf("no transfer to %s was carried; connections that were not:\n%+v", to, p.conns(ctx, t, 0, transferPort, "--all"))
}

// demotionLine is what a gateway logs, a second later, about connections that left a carrier, with the completion
// that caused it.
const demotionLine = "connections go on over the relay"

// why logs what both guests report of a connection that left the adapters: the completion, and the counters of
// rdma_rxe, which tell a gateway's mistake from one of rdma_rxe.
func (p *adapterPair) why(ctx context.Context, t *testing.T) {
	t.Helper()
	time.Sleep(2 * time.Second)
	for i := range p.guest {
		for line := range strings.Lines(p.last[i].Output()) {
			if strings.Contains(line, demotionLine) {
				t.Logf("guest %d: %s", i, line)
			}
		}
		t.Logf("guest %d: %s", i, p.sh(ctx, t, i, "cd /sys/class/infiniband/"+guest.Device+"/ports/1/hw_counters && grep -v '^0$' *"))
	}
}

// end stops the gateways and checks that nothing is left on the adapters.
func (p *adapterPair) end(ctx context.Context, t *testing.T) {
	t.Helper()
	for i, g := range p.guest {
		if g.Ended() {
			continue
		}
		p.sh(ctx, t, i, endGateways)
		nothingLeft(ctx, t, g)
	}
	p.used = false
}

// endGateways is a script that ends a guest's gateways.
const endGateways = "kill -TERM $(pidof smcgw); while pidof smcgw; do sleep .2; done"
