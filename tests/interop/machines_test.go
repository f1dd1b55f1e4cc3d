package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/daemon"
	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/tests/interop/guest"
	"github.com/smcgw/smcgw/tests/interop/guest/remote"
)

// Ports of the programs. Both are in the policy.
const (
	echoPort     = 7000
	transferPort = 7001
)

// machines are two machines with a gateway each: the tapped host, which shares this machine's clock, and a guest with
// a clock of its own.
type machines struct {
	host  *testnet.Tapped
	guest *guest.Guest
	admin *admin.Client // of the host's gateway
}

// Paths of the gateway in the guest, and of the programs that use it.
const (
	guestProgram = "/bin/smcgw"
	guestApps    = "/bin/smcgw-lab"
)

// machineConfig is the configuration of both. An emulated machine needs more time for handshakes.
const machineConfig = `schema: smcgw/v1
mode: enforce
admin: %[1]s/admin.sock
devices: [%[2]s]
policy:
  - { name: test, match: { ports: [%[3]d, %[4]d], peers: [10.77.0.0/16, "fd77::/16"] }, action: accelerate }
%[5]s  - { name: default, action: pass }
carriers: [soft]
shm_dir: %[1]s/shm
in_process: { socket: %[1]s/in-process.sock }
state_dir: %[1]s/state
limits: { memory: 128MiB, handshake_timeout: 10s }
`

// newMachines starts both machines with servers. The guest keeps its RDMA device, or loses it together with its module.
func newMachines(t *testing.T, rxe bool) *machines {
	testnet.Require(t, "vm", "bpf", "apt-get", "dpkg-deb", "xz", "zstd", "gcc")
	ctx := patience(t, 5*time.Minute)
	dir := t.TempDir()
	build(ctx, t, "0", "build", "-o", dir, "github.com/smcgw/smcgw/cmd/smcgw", "github.com/smcgw/smcgw/cmd/smcgw-lab")

	m := newGuest(ctx, t, filepath.Join(dir, "smcgw"), filepath.Join(dir, "smcgw-lab"))
	m.inHost(ctx, t, dir, filepath.Join(dir, "smcgw"), "")
	m.inGuest(ctx, t, rxe)
	return m
}

// newGuest starts the guest with a gateway and programs.
func newGuest(ctx context.Context, t *testing.T, gateway, programs string) *machines {
	t.Helper()
	l := bootWith(ctx, t, guest.Linux612, guest.Config{Files: map[string]string{guestProgram: gateway, guestApps: programs}})
	return &machines{host: l.host, guest: l.guest}
}

// inHost starts the host's gateway and servers; more is appended to its configuration.
func (m *machines) inHost(ctx context.Context, t *testing.T, dir, binary, more string) {
	t.Helper()
	text := fmt.Sprintf(machineConfig, dir, testnet.TapDevice, echoPort, transferPort, datagramRule) + more
	m.admin = gatewayOn(ctx, t, m.host.Host, dir, binary, text)
}

// gatewayOn starts a gateway with its files in a directory, and servers, on a host.
func gatewayOn(ctx context.Context, t *testing.T, h *testnet.Host, dir, binary, text string) *admin.Client {
	t.Helper()
	p, client, err := daemon.Start(ctx, h, daemon.Spec{
		Executable: binary, File: filepath.Join(dir, "smcgw.yaml"), Configuration: text, Socket: filepath.Join(dir, "admin.sock"),
	})
	t.Cleanup(func() {
		client.Close()
		if p != nil && t.Failed() {
			t.Logf("gateway of %s:\n%s", h.Name, p.Output())
		}
	})
	require.NoError(t, err)
	_, err = h.StartApp(servers()...)
	require.NoError(t, err)
	return client
}

func (m *machines) inGuest(ctx context.Context, t *testing.T, rxe bool) {
	t.Helper()
	if !rxe { // rxe has the port that our gateway wants
		m.inGuestRun(t, "rdma", "link", "delete", guest.Device)
		m.inGuestRun(t, "busybox", "rmmod", "rdma_rxe")
	}
	serveIn(ctx, t, m.guest)
	gatewayIn(ctx, t, m.guest, fmt.Sprintf(machineConfig, "/run", "eth0", echoPort, transferPort, datagramRule))
}

// serveIn prepares a guest for a gateway, and starts servers, which end with the guest.
func serveIn(ctx context.Context, t *testing.T, g *guest.Guest) {
	t.Helper()
	_, err := g.Run(ctx, "mount", "-t", "cgroup2", "none", "/sys/fs/cgroup")
	require.NoError(t, err)
	p, err := g.Start("env", appInGuest(servers()...)[1:]...)
	require.NoError(t, err)
	require.NoError(t, p.WaitOutput(ctx, fmt.Sprintf(":%d", transferPort)))
}

// gatewayIn starts the gateway of a guest, through a command that gets its command line if there is one.
func gatewayIn(ctx context.Context, t *testing.T, g *guest.Guest, text string, by ...string) *remote.Process {
	t.Helper()
	_, err := g.Run(ctx, "sh", "-c", `printf %s "$1" >/run/smcgw.yaml`, "sh", text)
	require.NoError(t, err)
	p := startIn(t, g, append(by, guestProgram, "up", "-c", "/run/smcgw.yaml")...)
	require.NoError(t, p.WaitOutput(ctx, "gateway is up"))
	return p
}

// askIn runs a verb of a guest's gateway and decodes its document.
func askIn(ctx context.Context, t *testing.T, g *guest.Guest, into any, verb ...string) {
	t.Helper()
	out, err := g.Run(ctx, guestProgram, append(verb, "--json", "--socket", "/run/admin.sock")...)
	require.NoError(t, err, out)
	require.NoError(t, json.Unmarshal([]byte(out), into), out)
}

// result returns the result of an app in a guest, whether it has failed or not.
func result(ctx context.Context, t *testing.T, app *remote.Process) (e apps.Event) {
	t.Helper()
	require.NoError(t, app.WaitOutput(ctx, `"event":"result"`))
	require.NoError(t, json.Unmarshal([]byte(lastLine(app.Output())), &e), app.Output())
	return e
}

func servers() []string {
	return []string{"serve", "-quiet", fmt.Sprintf("echo=[::]:%d", echoPort), fmt.Sprintf("transfer=[::]:%d", transferPort)}
}

func appInGuest(args ...string) []string {
	return append([]string{"env", apps.Variable + "=1", guestApps}, args...)
}

// start starts a program in the guest.
func (m *machines) start(t *testing.T, args ...string) *remote.Process {
	t.Helper()
	return startIn(t, m.guest, args...)
}

// status returns the status of both gateways, the guest's through its command line.
func (m *machines) status(ctx context.Context, t *testing.T) (host, inGuest report.Status) {
	t.Helper()
	host, err := m.admin.Status(ctx)
	require.NoError(t, err)
	askIn(ctx, t, m.guest, &inGuest, "status")
	return host, inGuest
}

func at(addr netip.Addr, port uint16) string { return netip.AddrPortFrom(addr, port).String() }
