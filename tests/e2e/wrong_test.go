package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// wrongStarts are mistakes on a host. TestWrongConfigurations and TestWrongCommands have the other entries of the
// list, whose numbers these names have. What the program prints must name the cause and the remedy.
var wrongStarts = []struct {
	name string
	test func(t *testing.T, w *world)
}{
	{"26 another user", wrongUser},
	{"27 second gateway", wrongSecond},
	{"28 second gateway elsewhere", wrongElsewhere},
	{"29 port of metrics in use", wrongMetricsPort},
	{"30 port of soft in use", wrongSoftPort},
	{"31 port of datagrams in use", wrongDatagramPort},
	{"32 reverse path filter", wrongFilter},
	{"33 no tun device", wrongTun},
	{"35 few descriptors", wrongDescriptors},
	{"36 rules and tables in use", wrongRules},
	{"37 state directory read-only", wrongReadOnly},
	{"38 state directory full", wrongFull},
	{"39 reload with errors", wrongReload},
	{"40 directory of another user", wrongOwner},
}

// TestWrongStarts tests wrongStarts. Of the list, TestStartWithoutCapability is 34 and TestDoctorHookFull 41.
func TestWrongStarts(t *testing.T) {
	t.Parallel()
	for _, c := range wrongStarts {
		t.Run(c.name, func(t *testing.T) { c.test(t, newWorld(t, testnet.Config{})) })
	}
}

// fails runs smcgw on h1, through other programs if given, and returns its output. It must fail.
func (w *world) fails(before []string, args ...string) string {
	w.t.Helper()
	return w.failsBy(before, binary, args...)
}

func (w *world) failsBy(before []string, program string, args ...string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	line := slices.Concat(before, []string{program}, args)
	out, err := w.h1.Command(ctx, line[0], line[1:]...).CombinedOutput()
	requireStatus(w.t, 1, err, string(out))
	return string(out)
}

// requireStatus checks the exit status of a program.
func requireStatus(t *testing.T, want int, err error, out string) {
	t.Helper()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, out)
	require.Equal(t, want, exit.ExitCode(), out)
}

// unstarted returns the configuration of a gateway on h1 that the test does not start.
func (w *world) unstarted(s settings) string {
	g := w.configure(w.h1, s)
	delete(w.gateways, w.h1)
	return g.config
}

func wrongUser(t *testing.T, w *world) {
	g := w.up(w.h1, settings{})
	public, err := os.MkdirTemp("", "smcgw-public-") //nolint:usetesting // only root can enter the directory of the test
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(public)) })
	require.NoError(t, os.Chmod(public, 0o755)) //nolint:gosec // for another user
	program, file := filepath.Join(public, "smcgw"), filepath.Join(public, "smcgw.yaml")
	text, err := os.ReadFile(binary)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, text, 0o755)) //nolint:gosec // for another user
	require.NoError(t, os.WriteFile(file, []byte("admin: "+g.socket+"\nstate_dir: "+public+"\n"), 0o644))
	require.NoError(t, os.Chmod(filepath.Dir(g.socket), 0o755)) //nolint:gosec // for another user
	nobody := []string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"}
	const who = "permission denied: it answers root, the daemon's user, and members of its group"
	for line, says := range map[string]string{
		"up -c " + file:               `needs root, or the capabilities of OPERATIONS.md "What it needs"; missing: CAP_NET_ADMIN`,
		"off -c " + file:              who,
		"cleanup -c " + file:          "permission denied: it takes root, or the daemon's user",
		"status --socket " + g.socket: who,
	} {
		require.Contains(t, w.failsBy(nobody, program, strings.Fields(line)...), says)
	}
}

func wrongSecond(t *testing.T, w *world) {
	g := w.up(w.h1, settings{})
	require.Contains(t, w.fails(nil, "up", "-c", g.config), "admin socket in use by another daemon: end that (smcgw drain), or replace it (smcgw up --takeover)")
}

func wrongElsewhere(t *testing.T, w *world) {
	g := w.up(w.h1, settings{})
	text, err := os.ReadFile(g.config)
	require.NoError(t, err)
	other := filepath.Join(w.dir, "other.yaml")
	require.NoError(t, os.WriteFile(other, []byte(strings.ReplaceAll(string(text), "/h1.", "/other.")), 0o600))
	require.Contains(t, w.fails(nil, "up", "-c", other), "another smcgw runs in this network namespace")
}

func wrongMetricsPort(t *testing.T, w *world) {
	w.serves(t, "serve", "127.0.0.1:9469")
	config := w.unstarted(settings{Extra: "metrics: { listen: '127.0.0.1:9469' }\n"})
	require.Contains(t, w.fails(nil, "up", "-c", config),
		"listen tcp 127.0.0.1:9469: bind: address already in use: another program has the port; metrics.listen in the configuration names another")
}

// serves starts a program on h1 that occupies a port.
func (w *world) serves(t *testing.T, app, addr string) *testnet.Proc {
	t.Helper()
	p, err := w.h1.StartApp(app, "echo="+addr)
	require.NoError(t, err)
	return p
}

// degradedBy returns the status of a gateway that must be degraded.
func degradedBy(t *testing.T, g *gw) string {
	t.Helper()
	out, err := g.cli("status", "--strict")
	requireStatus(t, 5, err, out)
	return out
}

// wrongSoftPort checks that the gateway receives on an alternate port, and waits if that is taken, too.
func wrongSoftPort(t *testing.T, w *world) {
	p := w.serves(t, "serve-udp", w.h1.AddrPort4(rdmaPort).String())
	g := w.up(w.h1, settings{Carriers: "soft"})
	out := g.says("status")
	require.Contains(t, out, fmt.Sprintf("note       soft0: receives on UDP port %d: UDP port %d is in use", rdmaPort+2, rdmaPort))
	g.stop()
	w.serves(t, "serve-udp", w.h1.AddrPort4(rdmaPort+2).String())
	g = w.up(w.h1, settings{Carriers: "soft"})
	require.Contains(t, degradedBy(t, g), "address already in use")
	require.NoError(t, p.Kill())
	require.Eventually(t, func() bool { return len(g.status().Degraded) == 0 }, time.Minute, 100*time.Millisecond)
}

func wrongDatagramPort(t *testing.T, w *world) {
	w.serves(t, "serve-udp", w.h1.AddrPort4(4790).String())
	g := w.up(w.h1, settings{Policy: "  - { name: udp, match: { proto: udp, ports: [7100] }, action: accelerate }\n"})
	require.Contains(t, degradedBy(t, g), "4790: bind: address already in use: free the port")
}

func wrongFilter(t *testing.T, w *world) {
	w.serve(w.h2)
	for _, h := range []*testnet.Host{w.h1, w.h2} {
		for _, dev := range []string{"all", "eth0"} {
			require.NoError(t, h.SetSysctl("net.ipv4.conf."+dev+".rp_filter", "1"))
		}
		w.up(h, settings{})
	}
	w.carried(t, w.h1, w.h2.AddrPort4(echoPort).String())
	for _, g := range w.gateways {
		require.Empty(t, g.status().Degraded)
	}
}

func wrongTun(t *testing.T, w *world) {
	without := []string{"unshare", "--mount", "sh", "-ec", `mount -t tmpfs none /dev/net; exec "$0" "$@"`}
	require.Contains(t, w.fails(without, "up", "-c", w.unstarted(settings{})), "open /dev/net/tun: no such file or directory (the kernel's module tun; in a container, the device)")
}

func wrongOwner(t *testing.T, w *world) {
	path := w.unstarted(settings{})
	require.NoError(t, os.Chmod(w.dir, 0o755))
	require.NoError(t, os.Chown(w.dir, 4242, 4242))
	require.Contains(t, w.fails(nil, "up", "-c", path), "permission denied: a gateway run by root writes only to root's directories")
}

func wrongDescriptors(t *testing.T, w *world) {
	few := []string{"prlimit", "--nofile=64:64", "--"}
	require.Contains(t, w.fails(few, "up", "-c", w.unstarted(settings{})), "limit of open files too small: 64 descriptors")
}

func wrongRules(t *testing.T, w *world) {
	for _, command := range []string{"rule add pref 4790 from 192.0.2.1 table 4790", "-6 rule add pref 4790 from 2001:db8::1 table 4790", "route add 192.0.2.0/24 dev lo table 4790"} {
		out, err := w.h1.Command(t.Context(), "ip", strings.Fields(command)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	w.serve(w.h2)
	before, err := w.h1.Rules()
	require.NoError(t, err)
	g := w.up(w.h1, settings{})
	w.up(w.h2, settings{})
	w.carried(t, w.h1, w.h2.AddrPort4(echoPort).String())
	g.stop()
	after, err := w.h1.Rules()
	require.NoError(t, err)
	require.Equal(t, sorted(before), sorted(after))
}

// upWithState starts a gateway whose state directory is a file system of its own.
func (w *world) upWithState(t *testing.T, options string) *gw {
	t.Helper()
	state := filepath.Join(w.dir, "h1.state")
	require.NoError(t, os.Mkdir(state, 0o700))
	return w.upBehind(w.h1, settings{}, nil, "unshare", "--mount", "sh", "-ec",
		fmt.Sprintf(`mount -t tmpfs -o %s none %s; exec "$0" "$@"`, options, state))
}

func wrongReadOnly(t *testing.T, w *world) {
	g := w.upWithState(t, "ro")
	out := g.says("status")
	require.Contains(t, out, "note       state_dir: smcgw off would not outlast this gateway: state directory "+w.dir+"/h1.state: read-only file system")
}

func wrongFull(t *testing.T, w *world) {
	g := w.upWithState(t, "nr_inodes=1")
	out, err := g.cli("off")
	requireStatus(t, 1, err, out)
	require.Contains(t, out, "new connections are native from now on, but not after a restart of the gateway: write off flag: open "+w.dir+"/h1.state/off: no space left on device")
	require.EqualValues(t, "off", g.status().Mode)
}

func wrongReload(t *testing.T, w *world) {
	g := w.up(w.h1, settings{})
	text, err := os.ReadFile(g.config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(g.config, append(text, "carrots: [shm]\n"...), 0o600))
	for _, reload := range []func(){
		func() {
			out, err := g.cli("reload")
			requireStatus(t, 1, err, out)
			require.Contains(t, out, "refused by the daemon: line 15: carrots: unknown field (known: schema,")
		},
		func() {
			g.signal(g.proc.Pid(), syscall.SIGHUP)
			require.Eventually(t, func() bool { return len(g.status().Degraded) > 0 }, 30*time.Second, 50*time.Millisecond)
		},
	} {
		reload()
		out := degradedBy(t, g)
		require.Contains(t, out, "mode enforce, 0 connections carried, degraded: config_refused")
		require.Regexp(t, `note       configuration: refused at \S+, the one before stays in force: line 15: carrots: .*; correct it \(smcgw check\) and reload`, out)
		require.NoError(t, os.WriteFile(g.config, text, 0o600))
		g.says("reload")
		require.Empty(t, g.status().Degraded)
		require.NoError(t, os.WriteFile(g.config, append(text, "carrots: [shm]\n"...), 0o600))
	}
}
