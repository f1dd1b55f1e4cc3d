package e2e

import (
	"context"
	"fmt"
	"net/netip"
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

// TestInProcessContainers has a podman container connect to another one, in another network, through a port that its
// host publishes. With the CDI device of the packages the connection must be promoted and the two ends told apart;
// without it the same connection must be native.
func TestInProcessContainers(t *testing.T) {
	t.Parallel()
	testnet.Require(t, "root", "bpf", "gcc", "podman", "/usr/lib/podman/netavark", "conmon", "crun", "iptables")
	for _, of := range []struct {
		name, device string
		promoted     bool
		bytes        int
	}{
		{"device", "--device smcgw.dev/in-process=all", true, 128 << 20}, // for ten seconds or more
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

// toldApart requires the two ends to be those of programs in different containers.
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

// containers starts both containers on the daemon's host, with options of podman, and returns the client.
func (w *inProcessWorld) containers(sockets string, cgroup *testnet.Cgroup, options string, bytes int) *testnet.Proc {
	w.t.Helper()
	return w.engine(w.h3, sockets, cgroup, fmt.Sprintf(`
		mkdir /sys/fs/cgroup/server /sys/fs/cgroup/client
		echo $$ >/sys/fs/cgroup/server/cgroup.procs
		server=$($run %[1]s -d --network net1 -p %[2]d:%[3]d --rootfs $root /stream serve %[3]d)
		until $podman logs $server | grep -q serving; do sleep 0.05; done
		echo $$ >/sys/fs/cgroup/client/cgroup.procs
		echo ready
		exec $run %[1]s --network net2 --rootfs $root /stream send %[4]s %[2]d %[5]d 16384 1000`,
		options, echoPort, transferPort, w.h3.Addr4, bytes))
}

// engine runs a script on a host that has podman with two networks, and a root directory with the program stream.
// Containers stay in podman's own control group: one of their own would need CAP_SYS_RESOURCE.
func (w *inProcessWorld) engine(h *testnet.Host, sockets string, cgroup *testnet.Cgroup, script string) *testnet.Proc {
	w.t.Helper()
	dir := scratch(w.t)
	require.NoError(w.t, os.Chmod(dir, 0o755))
	require.NoError(w.t, os.WriteFile(filepath.Join(dir, "containers.conf"), []byte(podmanConfig), 0o600))
	device, err := filepath.Abs("../../packaging/cdi/smcgw.json")
	require.NoError(w.t, err)
	require.NoError(w.t, h.SetSysctl("net.ipv4.ip_forward", "1"))
	return privately(w.t, h, cgroup, fmt.Sprintf(`
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
		root=%[1]s/root
		run="$podman run --security-opt seccomp=unconfined --ulimit nofile=1024:1024 --ulimit nproc=1024:1024"
		%[5]s`, dir, w.dir, sockets, device, script), "empty=/run", "cgroup")
}

// TestBetweenHostsContainers has a podman container connect to one on another host, which has the same address there,
// through the port that the host publishes. With the device on both they must be in process between the hosts; a
// client without it must be native.
func TestBetweenHostsContainers(t *testing.T) {
	t.Parallel()
	testnet.Require(t, "root", "bpf", "gcc", "podman", "/usr/lib/podman/netavark", "conmon", "crun", "iptables")
	w := &betweenWorld{inProcessWorld: newProgramsWorld(t)}
	var sockets [2]string
	for i, h := range []*testnet.Host{w.h1, w.h2} {
		sockets[i] = scratch(t)
		require.NoError(t, os.Chmod(sockets[i], 0o755))
		w.gs[i] = w.up(h, settings{
			Carriers: "soft",
			Policy:   fmt.Sprintf("  - { name: rings, match: { ports: [%d, %d] }, action: accelerate, way: in-process }\n", echoPort, transferPort),
			Extra:    fmt.Sprintf("in_process: { socket: %s/broker.sock, between_hosts: on }\n", sockets[i]),
		})
	}
	inside := netip.MustParseAddr("10.91.0.2")
	network := fmt.Sprintf("--network net1 --ip %s", inside)
	const device, few, bytes = "--device smcgw.dev/in-process=all", 1 << 20, 128 << 20 // bytes: for ten seconds or more
	server := w.engine(w.h1, sockets[0], group(t), fmt.Sprintf(`
		server=$($run %[1]s -d %[2]s -p %[3]d:%[4]d --rootfs $root /stream serve %[4]d)
		until $podman logs $server | grep -q serving; do sleep 0.05; done
		echo ready
		exec $podman logs -f $server`, device, network, echoPort, transferPort))
	send := fmt.Sprintf("%s --rootfs $root /stream send %s %d", network, w.h1.Addr4, echoPort)
	client := w.engine(w.h2, sockets[1], group(t), fmt.Sprintf(`
		$run %[1]s %[2]d 16384 1000
		echo ready
		exec $run %[3]s %[1]s %[4]d 16384 1000`, send, few, device, bytes))
	require.Contains(t, client.Output(), fmt.Sprintf("whole %d\n", few))
	ends := w.promoted()
	require.Equal(t, inside, ends[0].Local.Addr())
	require.Equal(t, w.h2.Addr4, ends[0].Remote.Addr(), "masqueraded")
	require.Equal(t, inside, ends[1].Local.Addr())
	require.Equal(t, w.h1.AddrPort4(echoPort), ends[1].Remote, "the published port")
	for _, e := range ends {
		require.Equal(t, report.CarrierSoft, e.Carrier)
		require.Equal(t, "stream", e.Program.Name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), slowed(60*time.Second))
	defer cancel()
	for _, p := range []*testnet.Proc{client, server} {
		require.NoError(t, p.WaitOutput(ctx, fmt.Sprintf("whole %d\n", bytes)), tail(p.Output(), 300))
	}
	for _, g := range w.gs {
		require.EqualValues(t, 1, g.status().InProcess.ConnectionsTotal, "the first one was native")
	}
}
