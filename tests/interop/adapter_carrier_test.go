package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/tests/interop/guest"
)

// adapterConfig is that of a gateway that carries on adapters only. An emulated machine
// has little time for its handshakes.
const adapterConfig = `schema: smcgw/v1
mode: enforce
admin: /run/admin.sock
devices: [eth0]
policy:
  - { name: test, match: { ports: [%d, %d] }, action: accelerate }
carriers: [hw]
shm_dir: /run/shm
state_dir: /run/state
limits: { memory: 256MiB, handshake_timeout: 10s }
fallback: { negative_cache: 1s }
`

// adapterPair is two guests on one network, each with rdma_rxe and a gateway that has no
// other carrier.
type adapterPair struct {
	host  *testnet.Tapped
	guest [2]*guest.Guest
}

func newAdapterPair(ctx context.Context, t *testing.T) *adapterPair {
	testnet.Require(t, "vm", "bpf", "apt-get", "dpkg-deb", "xz", "zstd", "gcc")
	img, err := guest.Build(ctx, guest.Linux612)
	require.NoError(t, err)
	dir := t.TempDir()
	files := map[string]string{}
	for path, cgo := range map[string]string{guestProgram: "1", guestApps: "0"} {
		file := filepath.Join(dir, filepath.Base(path))
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", "netgo,osusergo", "-ldflags", "-s -w", "-o", file,
			"github.com/smcgw/smcgw/cmd/"+filepath.Base(path))
		build.Env = append(build.Environ(), "CGO_ENABLED="+cgo)
		out, err := build.CombinedOutput()
		require.NoError(t, err, "%s", out)
		files[path] = file
	}
	p := &adapterPair{}
	p.host, err = testnet.NewTapped(1500)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.host.Close()) })
	require.NoError(t, p.host.AddSecond(1500))
	for i := range p.guest {
		g, err := guest.Boot(ctx, p.host, img, guest.Config{Files: files, Second: i == 1})
		require.NoError(t, err)
		p.guest[i] = g
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("console of guest %d:\n%s", i, g.Console())
			}
			require.NoError(t, g.Close())
		})
	}
	return p
}

// up starts the gateways and servers.
func (p *adapterPair) up(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, g := range p.guest {
		text := fmt.Sprintf(adapterConfig, echoPort, transferPort)
		for _, args := range [][]string{
			{"mount", "-t", "cgroup2", "none", "/sys/fs/cgroup"},
			{"sh", "-c", `printf %s "$1" >/run/smcgw.yaml`, "sh", text},
		} {
			_, err := g.Run(ctx, args[0], args[1:]...)
			require.NoError(t, err)
		}
		gateway := startIn(t, g, guestProgram, "up", "-c", "/run/smcgw.yaml")
		require.NoError(t, gateway.WaitOutput(ctx, "gateway is up"))
		apps := startIn(t, g, appInGuest(servers()...)...)
		require.NoError(t, apps.WaitOutput(ctx, fmt.Sprintf(":%d", transferPort)))
	}
}

// ask runs a verb of a guest's gateway.
func (p *adapterPair) ask(ctx context.Context, t *testing.T, i int, into any, verb ...string) {
	t.Helper()
	out, err := p.guest[i].Run(ctx, guestProgram, append(verb, "--json", "--socket", "/run/admin.sock")...)
	require.NoError(t, err, out)
	require.NoError(t, json.Unmarshal([]byte(out), into), out)
}

func (p *adapterPair) status(ctx context.Context, t *testing.T, i int) (st admin.Status) {
	t.Helper()
	p.ask(ctx, t, i, &st, "status")
	return st
}

// run runs a program of ours in the first guest.
func (p *adapterPair) run(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	args = appInGuest(args...)
	out, err := p.guest[0].Run(ctx, args[0], args[1:]...)
	require.NoError(t, err, out)
	return out
}

// received is how many packets rdma_rxe of a guest has received.
func (p *adapterPair) received(ctx context.Context, t *testing.T, i int) (n uint64) {
	t.Helper()
	out, err := p.guest[i].Run(ctx, "cat", "/sys/class/infiniband/"+guest.Device+"/ports/1/hw_counters/rcvd_pkts")
	require.NoError(t, err)
	n, err = strconv.ParseUint(strings.TrimSpace(out), 10, 64)
	require.NoError(t, err)
	return n
}

// TestAdapterCarries: gateways on the adapters of two kernels carry a program's bytes
// both ways, on nothing else, and leave nothing on the adapters when they end.
func TestAdapterCarries(t *testing.T) {
	ctx := patience(t, 12*time.Minute)
	p := newAdapterPair(ctx, t)
	p.up(ctx, t)
	var devices admin.DeviceList
	p.ask(ctx, t, 0, &devices, "devices")
	require.Len(t, devices.Devices, 1, "soft is not open")
	require.Equal(t, admin.DeviceActive, devices.Devices[0].State, devices.Devices[0].Error)
	before := [2]uint64{p.received(ctx, t, 0), p.received(ctx, t, 1)}

	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
	p.transfer(ctx, t, at(p.guest[1].Addr6, transferPort))
	for i := range p.guest {
		st := p.status(ctx, t, i)
		require.GreaterOrEqual(t, st.BytesTotal[config.CarrierHW].Tx, uint64(2*transferSize))
		require.GreaterOrEqual(t, st.BytesTotal[config.CarrierHW].Rx, uint64(2*transferSize))
		require.Greater(t, p.received(ctx, t, i)-before[i], uint64(2*transferSize/1024))
	}
	if thorough() {
		p.unload(ctx, t)
	}
	p.end(ctx, t)
}

// transferSize is what a transfer moves each way.
const transferSize = 4 << 20

// transfer moves bytes both ways, which the programs compare, until they were carried by
// the adapters: an emulated machine may be too slow for a proof.
func (p *adapterPair) transfer(ctx context.Context, t *testing.T, to string) {
	t.Helper()
	size := fmt.Sprint(transferSize)
	for range 15 {
		before := p.status(ctx, t, 0).FlowsTotal[config.CarrierHW]
		p.run(ctx, t, "transfer", "-to", to, "-up", size, "-down", size)
		if p.status(ctx, t, 0).FlowsTotal[config.CarrierHW] > before {
			return
		}
		time.Sleep(2 * time.Second)
	}
	t.Fatalf("no transfer to %s was carried", to)
}

// unload takes the adapter from the first gateway, under a connection, and brings it
// back. The kernel waits for whatever has an adapter open.
func (p *adapterPair) unload(ctx context.Context, t *testing.T) {
	t.Helper()
	g := p.guest[0]
	talk := startIn(t, g, appInGuest("ping", "-to", at(p.guest[1].Addr4, echoPort), "-count", "100", "-gap", "100ms")...)
	time.Sleep(3 * time.Second)
	var done admin.Result
	p.ask(ctx, t, 0, &done, "demote", "--device", guest.Device)
	_, err := g.Run(patience(t, 20*time.Second), "rdma", "link", "delete", guest.Device)
	require.NoError(t, err, "a process has it open")
	_, err = g.Run(ctx, "rdma", "link", "add", guest.Device, "type", "rxe", "netdev", "eth0")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		var devices admin.DeviceList
		p.ask(ctx, t, 0, &devices, "devices")
		return devices.Devices[0].State == admin.DeviceActive
	}, time.Minute, time.Second, "it is used again")
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
	require.NoError(t, talk.Wait(ctx), talk.Output())
}

// end stops the gateways and looks for what is left on the adapters.
func (p *adapterPair) end(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, g := range p.guest {
		_, err := g.Run(ctx, "sh", "-c", "kill -TERM $(pidof smcgw); while pidof smcgw; do sleep .2; done")
		require.NoError(t, err)
		for _, kind := range []string{"qp", "cq", "mr", "pd"} {
			left, err := g.Run(ctx, "sh", "-c", "rdma res show "+kind+" | grep -v 'comm \\[' || true")
			require.NoError(t, err)
			require.Empty(t, strings.TrimSpace(left), "left on the adapter")
		}
	}
}
