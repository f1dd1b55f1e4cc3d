package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// imageConfig replaces the configuration of docs/operations/install.md "Containers" in the container: the host's
// control groups are elsewhere here.
const imageConfig = `mode: enforce
cgroup_path: /host/cgroup
devices: [eth0]
carriers: [soft]
policy: [{ name: test, match: { ports: [%d] }, action: accelerate }]
limits: { handshake_timeout: 5s }
soft: { udp_port: %d }
`

// TestImage checks that the container image runs with the options of docs/operations/install.md in its host's
// network, carries a connection of a program outside the container, and leaves nothing behind.
func TestImage(t *testing.T) {
	t.Parallel()
	testnet.Require(t, "podman", "conmon", "crun")
	w := newWorld(t, testnet.Config{})
	dir := scratch(t)
	made := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	program := filepath.Join(dir, "smcgw") // without cgo: the image has no libc
	made("build", "-trimpath", "-o", program, "../../cmd/smcgw")
	made("run", "-C", "../../packaging/tools", "./image", "-program", program, "-config", "../smcgw.yaml",
		"-tag", "localhost/smcgw:test", "-out", filepath.Join(dir, "image.tar"))
	for _, d := range []string{"etc", "run", "lib"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, d), 0o755)) //nolint:gosec // as packages install them
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "etc/smcgw.yaml"), fmt.Appendf(nil, imageConfig, echoPort, rdmaPort), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "containers.conf"), []byte(podmanConfig), 0o600))

	w.serve(w.h2)
	g2 := w.up(w.h2, settings{Carriers: "soft"})
	before := w.footprint(w.h1)
	g := group(t)
	w.h1.Within(g)
	privately(t, w.h1, g, fmt.Sprintf(`
		export CONTAINERS_CONF=%[1]s/containers.conf TMPDIR=/run HOME=/run
		podman="podman --storage-driver vfs --root /run/storage --runroot /run/containers"
		$podman load -i %[1]s/image.tar
		$podman run -d --name smcgw --network host --read-only --cap-drop all --cap-add NET_ADMIN,BPF,PERFMON,SYS_ADMIN \
			--security-opt seccomp=unconfined --device /dev/net/tun -v /sys/fs/cgroup:/host/cgroup:ro -v %[1]s/etc:/etc/smcgw:ro \
			-v %[1]s/run:/run/smcgw -v %[1]s/lib:/var/lib/smcgw localhost/smcgw:test
		tries=0
		while ! [ -S %[1]s/run/smcgw.sock ]; do
			sleep 0.1
			tries=$((tries+1))
			[ $tries -lt 300 ] || { $podman ps -a; $podman logs smcgw; exit 1; }
		done
		echo ready
		$podman logs -f smcgw 2>&1 &
		while ! [ -e %[1]s/stop ]; do sleep 0.1; done
		$podman stop -t 20 smcgw
		$podman logs smcgw >%[1]s/log 2>&1
		touch %[1]s/stopped
		exec sleep infinity`, dir), "empty=/run", "cgroup")

	c := admin.NewClient(filepath.Join(dir, "run/smcgw.sock"))
	t.Cleanup(c.Close)
	var st report.Status
	var err error
	if !assert.Eventually(t, func() bool {
		st, err = c.Status(t.Context())
		return err == nil && st.Mode == report.ModeEnforce
	}, slowed(20*time.Second), 50*time.Millisecond) {
		require.Fail(t, "not up", "%+v %v", st, err)
	}
	require.Empty(t, st.Degraded)
	require.Eventually(t, func() bool {
		e := w.mustApp(w.h1, "ping", "-count", "3", "-to", w.h2.AddrPort4(echoPort).String())
		require.Equal(t, 3, e.OK)
		st, err = c.Status(t.Context())
		require.NoError(t, err)
		return st.FlowsTotal[report.CarrierSoft] > 0 && g2.status().FlowsTotal[report.CarrierSoft] > 0
	}, slowed(time.Minute), 100*time.Millisecond)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "stop"), nil, 0o600))
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(dir, "stopped"))
		return err == nil
	}, slowed(2*time.Minute), 100*time.Millisecond)
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	require.NoError(t, err)
	require.Contains(t, string(log), `"gateway has stopped"`)
	require.Equal(t, before, w.footprint(w.h1))
}
