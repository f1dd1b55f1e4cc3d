package e2e

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// TestStartWithoutCgroupMount checks that a gateway carries as usual in a namespace as "ip netns exec" sets it up,
// where /sys is mounted anew with nothing below it.
func TestStartWithoutCgroupMount(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.up(w.h2, settings{})
	w.upBehind(w.h1, settings{}, nil, "unshare", "--mount", "sh", "-ec",
		`umount --lazy /sys; mount -t sysfs sysfs /sys; ! grep -q " - cgroup2 " /proc/self/mountinfo; exec "$0" "$@"`)
	w.carried(t, w.h1, w.h2.AddrPort4(echoPort).String())
}

// TestStartWithoutCapability checks that a failing start names the missing capability.
func TestStartWithoutCapability(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	g := w.configure(w.h1, settings{})
	delete(w.gateways, w.h1)
	for name, flag := range map[string]string{"CAP_BPF (": "-bpf", "CAP_PERFMON (": "-perfmon", "CAP_NET_ADMIN (": "-net_admin"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := w.h1.Command(ctx, "setpriv", "--bounding-set", flag, binary, "up", "-c", g.config).CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), name)
		require.NotContains(t, string(out), "MEMLOCK")
	}
}

// TestDevicesOfRoutes checks that, without devices in the configuration, connections over any device with a route to
// a rule's peers are carried, even without a default route.
func TestDevicesOfRoutes(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	out, err := w.h1.Command(t.Context(), "ip", "route", "del", "default").CombinedOutput()
	t.Logf("default route: %s%v", out, err) // there may be none
	for _, command := range []string{       // like a route to a container, without an address
		"link add pod0 type veth peer name pod1", "link set pod0 up", "link set pod1 up", "route add 10.99.0.1/32 dev pod0", "route add fd99::1/128 dev pod0",
	} {
		out, err := w.h1.Command(t.Context(), "ip", strings.Fields(command)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	g := w.up(w.h1, settings{Devices: " "})
	require.NoError(t, g.proc.WaitOutput(patience(t), "device=eth0 offers=true"))
	require.NoError(t, g.proc.WaitOutput(patience(t), "device=pod0 offers=false"))
	w.up(w.h2, settings{})
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) { w.carried(t, w.h1, addr(w.h2, echoPort)) })
	require.Empty(t, w.gateways[w.h1].status().Degraded)
}

// TestDeviceThatIsNotThere checks that a configured device that does not exist is reported until it appears.
func TestDeviceThatIsNotThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	g := w.up(w.h1, settings{Devices: "eht0"})
	out, err := g.cli("status", "--strict")
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, out)
	require.Equal(t, 5, exit.ExitCode())
	require.Contains(t, out, "note       devices: there is no network device eht0 here: see ip link, and correct devices\n")
	check, err := w.h1.Command(t.Context(), binary, "check", "-c", g.config).CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(check), "there is no network device eht0 in this network namespace")
	added, err := w.h1.Command(t.Context(), "ip", "link", "add", "eht0", "type", "veth", "peer", "name", "eht1").CombinedOutput()
	require.NoError(t, err, "%s", added)
	require.Eventually(t, func() bool { return len(g.status().Degraded) == 0 }, 30*time.Second, 50*time.Millisecond)

	// As the port of another device it exists, but carries nothing.
	for _, command := range []string{"link add br0 type bridge", "link set eht0 master br0"} {
		out, err := w.h1.Command(t.Context(), "ip", strings.Fields(command)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	const said = "eht0 is a port of br0"
	require.Eventually(t, func() bool { return slices.Contains(g.status().Notes, "devices: "+said+": name that") }, 30*time.Second, 50*time.Millisecond)
	require.Equal(t, []string{"address"}, g.status().Degraded)
	check, err = w.h1.Command(t.Context(), binary, "check", "-c", g.config).CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(check), "# note: devices: "+said+": name that\n")
	r, _ := says[doctorReport](w, w.h1, nil, "doctor", "-c", g.config)
	found(t, r, "devices", "warning", said+": nothing is carried by it")
}
