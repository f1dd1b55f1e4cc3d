package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

const (
	packaging   = "../../packaging"
	serviceUnit = packaging + "/systemd/smcgw.service"
	// maxExposure is the highest exposure of the unit that systemd-analyze security may report, out of 10: what
	// remains are privileges that a gateway cannot do without.
	maxExposure = 2.7
)

// service returns the unit's directives; repeated ones are joined.
func service(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(serviceUnit)
	require.NoError(t, err)
	unit := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && !strings.HasPrefix(name, "#") {
			unit[name] = strings.TrimSpace(unit[name] + " " + value)
		}
	}
	return unit
}

// TestServiceUnit checks that systemd understands every line of the unit and reports it as confined, and that the
// unit grants what the gateway keeps.
func TestServiceUnit(t *testing.T) {
	t.Parallel()
	testnet.Require(t, "systemd-analyze")
	text, err := os.ReadFile(serviceUnit)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "smcgw.service")
	here := strings.ReplaceAll(string(text), "/usr/bin/smcgw", binary) // systemd-analyze looks for the program
	require.NoError(t, os.WriteFile(path, []byte(here), 0o600))
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "smcgw.service", "%s", out)

	out, err = exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=true", "--no-pager", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
	level := regexp.MustCompile(`Overall exposure level for smcgw.service: ([0-9.]+)`).FindSubmatch(out)
	require.NotNil(t, level, "%s", out)
	exposure, err := strconv.ParseFloat(string(level[1]), 64)
	require.NoError(t, err)
	t.Logf("exposure %v of 10, at most %v", exposure, maxExposure)
	require.LessOrEqual(t, exposure, maxExposure, "%s", out)

	var kept []string
	for _, c := range process.Capabilities() {
		kept = append(kept, c.Name)
	}
	for _, set := range []string{"CapabilityBoundingSet", "AmbientCapabilities"} {
		require.Equal(t, kept, strings.Fields(service(t)[set]), set)
	}
}

// TestServiceConfiguration checks that the installed configuration changes nothing.
func TestServiceConfiguration(t *testing.T) {
	t.Parallel()
	f, err := config.Load(packaging + "/smcgw.yaml")
	require.NoError(t, err)
	require.Equal(t, report.ModeObserve, f.Config.Mode)
	require.Equal(t, "/run/smcgw/smcgw.sock", f.Config.Admin)
	require.Equal(t, "/var/lib/smcgw", f.Config.StateDir)
}

// TestRemovalSparesOthers checks that removing the package leaves the directories in which gateways of containers
// have their sockets, even on a host without pgrep.
func TestRemovalSparesOthers(t *testing.T) {
	t.Parallel()
	testnet.Require(t, "root", "unshare")
	dir := t.TempDir()
	for _, program := range []string{"sh", "grep", "rm"} {
		path, err := exec.LookPath(program)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(dir, program)))
	}
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	program, err := os.ReadFile(sleep)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "smcgw-guardian"), program, 0o700))
	guardian := exec.Command(filepath.Join(dir, "smcgw-guardian"), "600")
	require.NoError(t, guardian.Start())
	t.Cleanup(func() {
		require.NoError(t, guardian.Process.Kill())
		require.Error(t, guardian.Wait())
	})
	script, err := filepath.Abs(packaging + "/scripts/postremove.sh")
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", "sh", "-ec", `
		mount -t tmpfs tmpfs /run
		mkdir /run/smcgw
		PATH=$1 sh $0 remove
		[ -d /run/smcgw ]
	`, script, dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestServiceSandbox checks that the gateway carries over every carrier with what the unit leaves it: user,
// capabilities, group, file systems, address families and system calls; a call outside the filter would kill it. The
// test does not emulate the device policy and the namespaces of clock, host name and kernel modules, for want of
// systemd as the first process.
func TestServiceSandbox(t *testing.T) {
	t.Parallel()
	testnet.Require(t, "root", "bpf", "systemd-analyze", "setpriv", "unshare")
	unit := service(t)
	for _, carriers := range []string{"shm", "soft"} {
		t.Run(carriers, func(t *testing.T) {
			t.Parallel()
			d := newDatagramWorld(t)
			d.via = report.Carrier("rdma-" + carriers)
			d.sandbox(unit)
			d.serve(d.h2)
			d.server = d.serveNumbered(d.h2)
			s := datagramSettings()
			s.Carriers = carriers
			s.Extra = d.keys(d.h1, keyOne)
			d.g1 = d.up(d.h1, s)
			s.Extra = d.keys(d.h2, keyOne)
			d.g2 = d.up(d.h2, s)
			for _, g := range d.gateways {
				g.privileges(t)
				g.confined(t)
			}
			d.prove(t, d.h2.AddrPort4(echoUDP))
			d.carriedApp(t, d.h1, "transfer", "-up", "20000000", "-down", "20000000", "-to", d.h2.AddrPort6(transferPort).String())
			d.g1.reload("configuration in force")
			d.g1.says("off")
			d.g1.says("on")
			d.mustApp(d.h1, "churn", "-count", "50", "-parallel", "8", "-to", d.h2.AddrPort4(transferPort).String())
			d.g2.signal(d.g2.daemon(), 9)
			require.Error(t, d.g2.proc.Wait(), "the guardian says that its daemon died")
			d.g1.stop()
		})
	}
}

// confined checks that the sandbox is in force.
func (g *gw) confined(t *testing.T) {
	t.Helper()
	for _, pid := range g.processes() {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		require.NoError(t, err)
		require.Contains(t, string(status), "Seccomp:\t2\n")
		require.Contains(t, string(status), "Uid:\t4242\t4242")
		require.Contains(t, string(status), "Gid:\t4242\t4242")
		for _, dir := range []string{"etc", "usr", "var/lib", "sys/fs/cgroup", "root"} {
			err := os.Mkdir(fmt.Sprintf("/proc/%d/root/%s/smcgw-probe", pid, dir), 0o700)
			require.ErrorIs(t, err, syscall.EROFS, dir)
		}
	}
}

// sandbox replaces the program of the world's gateways by one that runs as the unit says. The world's directory
// stands for those that the unit makes.
func (w *world) sandbox(unit map[string]string) {
	t, dir := w.t, w.dir
	t.Helper()
	for name, want := range map[string]string{ // the script below implements these
		"ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes", "ProtectProc": "invisible",
		"ProtectControlGroups": "yes", "ProtectKernelLogs": "yes", "NoNewPrivileges": "yes", "UMask": "0077",
		"MemoryDenyWriteExecute": "yes", "RestrictNamespaces": "user net", "ProtectKernelTunables": "", "User": "smcgw",
		"SystemCallErrorNumber": "EPERM",
	} {
		require.Equal(t, want, unit[name], "%s of the unit is not what is tested", name)
	}
	for from, to := range map[string]string{binary: "smcgw", "/proc/self/exe": "sandbox"} {
		b, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, to), b, 0o700))
	}
	calls := filepath.Join(dir, "calls")
	list := fmt.Sprint(syscallNumbers(t, strings.Fields(unit["SystemCallFilter"])))
	require.NoError(t, os.WriteFile(calls, []byte(strings.Trim(list, "[]")), 0o600))
	var caps []string
	for c := range strings.FieldsSeq(unit["CapabilityBoundingSet"]) {
		caps = append(caps, "+"+strings.ToLower(strings.TrimPrefix(c, "CAP_")))
	}
	script := filepath.Join(dir, "service")
	require.NoError(t, os.WriteFile(script, fmt.Appendf(nil, `#!/bin/sh
umask 0077
exec unshare --mount --propagation private sh -ec '
	[ -e "$0/tun" ] || mknod -m 666 "$0/tun" c 10 200 # as udev has it for every user
	mount --bind "$0/tun" /dev/net/tun
	mount --bind "$0" /mnt
	mount -t tmpfs -o mode=1777 tmpfs /tmp
	for home in /root /home; do [ ! -d $home ] || mount -t tmpfs -o ro tmpfs $home; done
	mount --bind /dev/null /dev/kmsg 2>/dev/null || true
	mount -t proc -o hidepid=invisible proc /proc
	mkdir -p "$0"
	while read -r _ _ _ _ where _; do
		case $where in
		/dev*|/proc*|/mnt|/tmp) ;;
		/sys/fs/cgroup*) mount -o remount,bind,ro "$where" ;;
		/sys*) ;;
		*) mount -o remount,bind,ro "$where" 2>/dev/null || true ;;
		esac
	done </proc/self/mountinfo
	mount -n --move /mnt "$0"
	chown -R 4242:4242 "$0"
	exec setpriv --bounding-set -all,%[1]s --inh-caps -all,%[1]s --ambient-caps -all,%[1]s --reuid 4242 --regid 4242 --clear-groups --no-new-privs \
		env %[2]s="$0/calls" "$0/sandbox" "$0/smcgw" "$@"
' %[3]s "$@"
`, strings.Join(caps, ","), sandboxEnv, dir), 0o700))
	w.program = script
}

// syscallNumbers resolves the sets and names of a SystemCallFilter.
func syscallNumbers(t *testing.T, filter []string) (numbers []int) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "syscall-filter", "--no-pager").Output()
	require.NoError(t, err)
	sets := map[string][]string{}
	set := ""
	for line := range strings.Lines(string(out)) {
		name := strings.TrimSpace(line)
		switch {
		case name == "" || strings.HasPrefix(name, "#"):
		case !strings.HasPrefix(line, " "):
			set = name
		default:
			sets[set] = append(sets[set], name)
		}
	}
	known := knownSyscalls(t)
	var add func(name string)
	add = func(name string) {
		if members, ok := sets[name]; ok {
			for _, m := range members {
				add(m)
			}
		} else if n, ok := known[name]; ok && !slices.Contains(numbers, n) {
			numbers = append(numbers, n)
		}
	}
	for _, name := range filter {
		require.True(t, len(sets[name]) > 0 || known[name] > 0, "%s is no system call", name)
		add(name)
	}
	require.Greater(t, len(numbers), 100)
	return numbers
}

// knownSyscalls returns the system call numbers of golang.org/x/sys/unix by the kernel's names.
func knownSyscalls(t *testing.T) map[string]int {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "golang.org/x/sys/unix").Output()
	require.NoError(t, err)
	goarch, err := exec.CommandContext(t.Context(), "go", "env", "GOARCH").Output()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "zsysnum_linux_"+strings.TrimSpace(string(goarch))+".go"))
	require.NoError(t, err)
	known := map[string]int{}
	for _, m := range regexp.MustCompile(`SYS_(\w+)\s+= (\d+)`).FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.Atoi(m[2])
		require.NoError(t, err)
		known[strings.ToLower(m[1])] = n
	}
	return known
}
