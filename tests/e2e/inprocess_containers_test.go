package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// TestInProcessContainers: a container of podman finds another one, in another network, by a port that its host publishes.
// With the device of packages both have their connection promoted, and are told apart; without it the same connection is
// native.
func TestInProcessContainers(t *testing.T) {
	t.Parallel()
	testnet.Require(t, "root", "bpf", "gcc", "podman", "/usr/lib/podman/netavark", "conmon", "crun", "iptables")
	for _, of := range []struct {
		name, device string
		promoted     bool
		bytes        int
	}{
		{"device", "--device smcgw.dev/in-process=all", true, 128 << 20}, // ten seconds and more
		{"native", "", false, 32 << 20},
	} {
		t.Run(of.name, func(t *testing.T) {
			sockets := scratch(t)
			require.NoError(t, os.Chmod(sockets, 0o755))
			w := newInProcessWorld(t, settings{Peers: "10.0.0.0/8", Extra: fmt.Sprintf("in_process: { socket: %s/broker.sock }\n", sockets)})
			cgroup := group(t)
			client := w.containers(sockets, cgroup, of.device, of.bytes)
			ctx, cancel := context.WithTimeout(t.Context(), slowed(60*time.Second))
			defer cancel()
			if of.promoted {
				w.toldApart(w.g.promoted(), cgroup)
			}
			require.NoError(t, client.WaitOutput(ctx, fmt.Sprintf("whole %d", of.bytes)), client.Output())
			n := uint64(0)
			if of.promoted {
				n = 1
			}
			require.Equal(t, n, w.g.status().InProcess.ConnectionsTotal)
		})
	}
}

// toldApart wants the two ends to be those of programs in containers of their own.
func (w *inProcessWorld) toldApart(ends []report.ConnInfo, cgroup *testnet.Cgroup) {
	w.t.Helper()
	for _, e := range ends {
		require.Equal(w.t, "stream", e.Program.Name)
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", e.Program.PID))
		require.NoError(w.t, err, "the PID is that of the daemon's namespace")
		require.Equal(w.t, "stream\n", string(comm))
		require.True(w.t, strings.HasPrefix(e.Program.Cgroup, cgroup.Name+"/"), e.Program.Cgroup)
	}
	require.NotEqual(w.t, ends[0].Program.PID, ends[1].Program.PID)
	require.NotEqual(w.t, ends[0].Program.Cgroup, ends[1].Program.Cgroup)
	i := slices.IndexFunc(ends, func(c report.ConnInfo) bool { return c.Remote == w.h3.AddrPort4(echoPort) })
	require.GreaterOrEqual(w.t, i, 0, "the client knows the published port alone")
	require.EqualValues(w.t, transferPort, ends[1-i].Local.Port())
	out := w.g.says("conns")
	for _, e := range ends {
		require.Regexp(w.t, fmt.Sprintf(`in-process.* stream +%d\b`, e.Program.PID), out)
	}
}

// containers starts both on the host of the daemon, with options of podman, and returns what the client says. Each stays in
// the control group that podman was started in: one of its own needs CAP_SYS_RESOURCE.
func (w *inProcessWorld) containers(sockets string, cgroup *testnet.Cgroup, options string, bytes int) *testnet.Proc {
	w.t.Helper()
	dir := scratch(w.t)
	require.NoError(w.t, os.Chmod(dir, 0o755))
	require.NoError(w.t, os.WriteFile(filepath.Join(dir, "containers.conf"), []byte(podmanConfig), 0o600))
	device, err := filepath.Abs("../../packaging/cdi/smcgw.json")
	require.NoError(w.t, err)
	require.NoError(w.t, w.h3.SetSysctl("net.ipv4.ip_forward", "1"))
	return privately(w.t, w.h3, cgroup, fmt.Sprintf(`
		cd %[1]s
		programs=%[2]s
		mkdir -p root/usr/lib root/proc root/dev root/sys root/etc root/tmp root/run
		for f in $(ldd $programs/stream | grep -o '/[^ ]*'); do mkdir -p "root${f%%/*}"; cp "$f" "root$f"; done
		cp $programs/stream root/
		mkdir /run/lib /run/work /run/cdi
		mount -t overlay -o lowerdir=/usr/lib,upperdir=/run/lib,workdir=/run/work none /usr/lib
		mkdir -p /usr/lib/smcgw/lib/$(gcc -print-multiarch) /run/smcgw/in-process
		cp $programs/libsmcgw.so /usr/lib/smcgw/lib/$(gcc -print-multiarch)/
		mount --bind %[3]s /run/smcgw/in-process
		cp %[4]s /run/cdi/
		export CONTAINERS_CONF=%[1]s/containers.conf TMPDIR=/run HOME=/run
		podman="podman --storage-driver vfs --root /run/storage --runroot /run/containers"
		for n in 1 2; do $podman network create --subnet 10.9$n.0.0/24 net$n; done
		mkdir /sys/fs/cgroup/server /sys/fs/cgroup/client
		run="run --security-opt seccomp=unconfined --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 %[5]s"
		echo $$ >/sys/fs/cgroup/server/cgroup.procs
		server=$($podman $run -d --network net1 -p %[6]d:%[7]d --rootfs %[1]s/root /stream serve %[7]d)
		until $podman logs $server | grep -q serving; do sleep 0.05; done
		echo $$ >/sys/fs/cgroup/client/cgroup.procs
		echo ready
		exec $podman $run --network net2 --rootfs %[1]s/root /stream send %[8]s %[6]d %[9]d 16384 1000`,
		dir, w.dir, sockets, device, options, echoPort, transferPort, w.h3.Addr4, bytes), "empty=/run", "cgroup")
}
