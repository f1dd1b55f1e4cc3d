package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// engines run containers with published ports, as Debian packages them: with their own rules, and their own programs
// on the ports.
func engines() []hostKind {
	docker := []string{"dockerd", "containerd", "runc", "docker-proxy", dockerClient, "iptables"}
	const inDocker = "{{if .V6}}[fd99::242:ac11:2]{{else}}172.17.0.2{{end}}"
	const inPodman = "{{if .V6}}[fd98::2]{{else}}10.98.0.2{{end}}"
	return []hostKind{
		{name: "docker", needs: docker, sides: anySide, build: engine(func(c *hostCell, h *testnet.Host) { c.docker(h, "") }, inDocker)},
		{name: "dockerplain", needs: docker, sides: []string{serverSide}, build: engine(func(c *hostCell, h *testnet.Host) {
			c.docker(h, "--userland-proxy=false")
		}, inDocker)},
		{
			name: "podman", needs: []string{"podman", "/usr/lib/podman/netavark", "conmon", "crun", "iptables"}, sides: anySide,
			build: engine((*hostCell).podman, inPodman),
		},
	}
}

// engine sets up a server in a container, published at two ports, and one outside. A client with an engine of its own
// has another container.
func engine(run func(*hostCell, *testnet.Host), address string) func(*hostCell) []target {
	return func(c *hostCell) []target {
		c.serves(c.h2, "app", 7001)
		for _, h := range c.those() {
			run(c, h)
		}
		targets := []target{{name: "beside containers", port: 7001, want: "app at {{.Dest .Server 7001}} saw client"}}
		if !c.has(c.h2) {
			return targets
		}
		return append(targets,
			target{name: "the container's port", port: 7000, want: "container at " + address + ":7000 saw client"},
			target{name: "another port", port: 7004, want: "container at " + address + ":7001 saw client"},
		)
	}
}

// dockerClient is Debian's: PATH may find another one first.
const dockerClient = "/usr/bin/docker"

// docker starts an engine whose only image is that of package apps, and a container of it.
func (c *hostCell) docker(h *testnet.Host, flags string) {
	c.t.Helper()
	dir := scratch(c.t)
	image := filepath.Join(dir, "image.tar")
	out, err := exec.CommandContext(c.t.Context(), "tar", "-C", filepath.Dir(appsProgram(c.t)), "-cf", image, "apps").CombinedOutput()
	require.NoError(c.t, err, string(out))
	privately(c.t, h, group(c.t), fmt.Sprintf(`
		mkdir -p /run/docker
		export DOCKER_HOST=unix:///run/docker.sock DOCKER_CONFIG=/run/docker-config TMPDIR=/run HOME=/run
		dockerd -H $DOCKER_HOST --data-root /run/docker-data --exec-root /run/docker -p /run/docker.pid --storage-driver vfs \
			--ipv6 --fixed-cidr-v6 fd99::/64 --experimental --ip6tables --log-level warn %s &
		docker=%s
		until $docker version >/dev/null 2>&1; do sleep 0.05; done
		$docker import %s apps
		$docker run -d --cgroup-parent / -p 7000:7000 -p 7004:7001 apps /apps serve -tag container 'transfer=[::]:7000' 'transfer=[::]:7001'
		echo ready
		wait`, flags, dockerClient, image), "empty=/run", "empty=/etc/docker", "cgroup")
}

// podmanConfig keeps everything that podman writes in /run, which is private.
const podmanConfig = `[containers]
cgroups = "disabled"
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "crun"
[network]
network_backend = "netavark"
network_config_dir = "/run/networks"
`

// podman runs a container from a directory, in a network of netavark.
func (c *hostCell) podman(h *testnet.Host) {
	c.t.Helper()
	root := rootOf(c.t)
	config := filepath.Join(scratch(c.t), "containers.conf")
	require.NoError(c.t, os.WriteFile(config, []byte(podmanConfig), 0o600))
	privately(c.t, h, group(c.t), fmt.Sprintf(`
		export CONTAINERS_CONF=%s TMPDIR=/run HOME=/run
		podman="podman --storage-driver vfs --root /run/storage --runroot /run/containers"
		$podman network create --ipv6 --subnet 10.98.0.0/24 --subnet fd98::/64 net
		$podman run -d --network net --security-opt seccomp=unconfined -p 7000:7000 -p 7004:7001 \
			--rootfs %s /apps serve -tag container 'transfer=[::]:7000' 'transfer=[::]:7001'
		echo ready
		exec sleep infinity`, config, root), "empty=/run", "cgroup")
}

// rootOf returns a root directory with only the program of package apps.
func rootOf(t *testing.T) string {
	t.Helper()
	root := filepath.Join(scratch(t), "root")
	require.NoError(t, os.Chmod(filepath.Dir(root), 0o755))
	require.NoError(t, os.Mkdir(root, 0o755))
	out, err := exec.CommandContext(t.Context(), "cp", appsProgram(t), root).CombinedOutput()
	require.NoError(t, err, string(out))
	return root
}
