package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/tests/interop/debian"
)

// Versions of the packages under test; the second is an upgrade of the first.
const (
	firstVersion  = "9.0.1"
	secondVersion = "9.0.2"
)

// quickStart is the configuration of docs/operations/quickstart.md, for all connections, plus what a busy machine
// with two networks needs.
const quickStart = `schema: smcgw/v1
mode: enforce
policy:
  - name: first
    match: { ports: [7000, 7001] }
    action: accelerate
rollout: { percent: 100%% }
devices: [%s]
limits: { handshake_timeout: 5s }
`

// system is a Debian on one host, with another host that has a gateway and servers.
type system struct {
	*debian.System

	at, peer       *testnet.Host
	old, new       string // packages of both versions, as paths in the system
	oldRPM, newRPM string
}

// packageNames returns the names of the packages of a version.
func packageNames(version string) (deb, rpm string) {
	return "smcgw_" + version + "-1_amd64.deb", "smcgw-" + version + "-1.x86_64.rpm"
}

// packagesVariable names the environment variable with a directory of packages of both versions, which are then not
// built.
const packagesVariable = "SMCGW_PACKAGES"

// makePackages builds the packages of two versions.
func makePackages(ctx context.Context, t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, version := range []string{firstVersion, secondVersion} {
		dir := os.Getenv(packagesVariable)
		if dir == "" {
			dir = t.TempDir()
			cmd := exec.CommandContext(ctx, "make", "-C", "../..", "package",
				"VERSION=v"+version, "DIST="+dir, "HW="+filepath.Join(dir, "smcgw"))
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
		deb, rpm := packageNames(version)
		files["/root/"+deb], files["/root/"+rpm] = filepath.Join(dir, deb), filepath.Join(dir, rpm)
		files["program "+version] = filepath.Join(dir, "smcgw")
	}
	return files
}

func newSystem(t *testing.T) *system {
	testnet.Require(t, "root", "bpf", "apt-get", "mmdebstrap", "man", "nsenter")
	ctx := patience(t, 15*time.Minute)
	archive, err := debian.Build(ctx)
	require.NoError(t, err)
	files := makePackages(ctx, t)
	program := files["program "+secondVersion]
	delete(files, "program "+firstVersion)
	delete(files, "program "+secondVersion)
	network, err := testnet.New(testnet.Config{Hosts: []string{"peer", "debian"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, network.Close()) })
	s := &system{peer: network.Host("peer"), at: network.Host("debian")}
	s.old, s.oldRPM = packageNames(firstVersion)
	s.new, s.newRPM = packageNames(secondVersion)
	s.startPeer(ctx, t, program)
	s.System, err = debian.Start(ctx, s.at, archive, files)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := s.Run(patienceAfter(t, time.Minute), "journalctl", "--no-pager", "-u", "smcgw", "-n", "100")
			t.Logf("journal:\n%s", out)
		}
		require.NoError(t, s.Close())
	})
	return s
}

func (s *system) startPeer(ctx context.Context, t *testing.T, program string) {
	t.Helper()
	dir := t.TempDir()
	gatewayOn(ctx, t, s.peer, dir, program, fmt.Sprintf(machineConfig, dir, s.peer.Device, echoPort, transferPort, ""))
}

// sh runs shell lines in the system, which must succeed.
func (s *system) sh(t *testing.T, lines string) string {
	t.Helper()
	out, err := s.Run(patience(t, 5*time.Minute), "sh", "-ec", lines)
	require.NoError(t, err, "%s: %s", lines, out)
	return out
}

// app starts a client of the peer's servers.
func (s *system) app(t *testing.T, args ...string) *testnet.Proc {
	t.Helper()
	p, err := s.at.StartApp(args...)
	require.NoError(t, err)
	return p
}

// ended waits for the end of a client and returns its result.
func (s *system) ended(t *testing.T, p *testnet.Proc) (e apps.Event) {
	t.Helper()
	select {
	case <-p.Done():
	case <-patience(t, 10*time.Minute).Done():
	}
	require.NoError(t, p.Wait(), p.Output())
	events := p.Events()
	require.NotEmpty(t, events)
	return events[len(events)-1]
}

// conns returns the connections that the gateway carries.
func (s *system) conns(t *testing.T) []report.ConnInfo {
	t.Helper()
	var list admin.ConnList
	require.NoError(t, json.Unmarshal([]byte(s.sh(t, "smcgw conns --json")), &list))
	return list.Conns
}

// traces lists what a gateway could leave behind: files, devices, rules, settings, programs, users, units.
// /root/.rpmdb is the database of Debian's rpm.
const traces = `
find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path /var/log -o -path /var/lib/dpkg -o -path /root/.rpmdb -o -path /var/lib/apt -o -path /var/cache -o -path /var/lib/systemd \) -prune -o -print | sort
find /run -name '*smcgw*' | sort
cat /etc/passwd /etc/group
ip -o link | sed 's/ qlen.*//'
ip rule; ip -6 rule; ip route show table all; ip -6 route show table all
sysctl -a 2>/dev/null | grep -E '^net\.(ipv4|ipv6|core)\.' | grep -vE 'stable_secret|hystart|_mem|nf_conntrack_count|tcp_fastopen_key|random'
bpftool cgroup tree | grep -E '^ +[0-9]' | grep -v ' sd_' | awk '{$1 = ""; print}'; bpftool net show
ss -Htulpn | awk '{print $1, $5}'
systemctl list-unit-files --no-legend | sort
`

// service returns a property of the unit from systemd.
func (s *system) service(t *testing.T, property string) string {
	t.Helper()
	return strings.TrimSpace(s.sh(t, "systemctl show -P "+property+" smcgw"))
}

// TestPackage follows a package on a Debian through its life: it is installed, configured by ten lines, upgraded and
// reloaded while connections are carried, killed, and purged.
func TestPackage(t *testing.T) {
	s := newSystem(t)
	before := s.sh(t, traces)

	t.Run("install", func(t *testing.T) {
		out := s.sh(t, "apt-get install -y /root/"+s.old+" 2>&1")
		require.Contains(t, out, "systemctl enable --now smcgw")
		require.Equal(t, "inactive", strings.TrimSpace(s.sh(t, "systemctl is-active smcgw || true")))
		require.Equal(t, "disabled", strings.TrimSpace(s.sh(t, "systemctl is-enabled smcgw || true")))
		s.sh(t, "systemd-analyze verify --man=no smcgw.service && smcgw check && id smcgw")
		out = s.sh(t, "dpkg -L smcgw")
		for _, file := range []string{
			"/usr/share/man/man1/smcgw-status.1.gz", "/usr/share/bash-completion/completions/smcgw", "/usr/share/zsh/vendor-completions/_smcgw",
			"/usr/share/doc/smcgw/prometheus/smcgw.rules.yaml", "/usr/share/doc/smcgw/operations/install.md",
		} {
			require.Contains(t, out, file)
			require.NotEmpty(t, s.sh(t, "cat "+file))
		}
	})

	t.Run("observe", func(t *testing.T) {
		s.sh(t, "systemctl enable --now smcgw")
		require.Contains(t, s.sh(t, "smcgw status --strict"), "mode observe, 0 connections carried")
		require.Contains(t, s.sh(t, "smcgw version"), firstVersion)
		for pid := range strings.FieldsSeq(s.sh(t, "pgrep smcgw")) {
			status := s.sh(t, "cat /proc/"+pid+"/status")
			require.NotRegexp(t, `(?m)^Uid:\s+0`, status)
			require.Contains(t, status, "Seccomp:\t2")
		}
	})

	var hold *testnet.Proc
	t.Run("quick start", func(t *testing.T) {
		s.sh(t, "cat >/etc/smcgw/smcgw.yaml <<'E'\n"+fmt.Sprintf(quickStart, s.at.Device)+"E\nsmcgw check >/dev/null; smcgw reload --replace")

		hold = s.app(t, "ping", "-to", s.peer.AddrPort4(echoPort).String(), "-count", "1200", "-gap", "50ms")
		require.Eventually(t, func() bool {
			conns := s.conns(t)
			return len(conns) == 1 && conns[0].Carrier == "rdma-soft"
		}, time.Minute, 100*time.Millisecond)
		t.Logf("what docs/operations/quickstart.md shows:\n%s", s.sh(t, "sleep 3; smcgw status; smcgw conns"))
	})

	main := s.service(t, "MainPID")
	t.Run("a refused configuration", func(t *testing.T) {
		s.sh(t, "cp /etc/smcgw/smcgw.yaml /root/; echo 'mdoe: off' >>/etc/smcgw/smcgw.yaml; ! systemctl reload smcgw 2>&1")
		require.Contains(t, s.sh(t, "smcgw status; journalctl --no-pager -u smcgw"), "mdoe")
		s.sh(t, "cp /root/smcgw.yaml /etc/smcgw/; systemctl reload smcgw; smcgw status --strict; rm /root/smcgw.yaml")
		require.Equal(t, main, s.service(t, "MainPID"))
	})

	t.Run("upgrade", func(t *testing.T) {
		out := s.sh(t, "apt-get install -y /root/"+s.new+" 2>&1")
		require.NotContains(t, out, "goes on")
		require.Regexp(t, `smcgw `+regexp.QuoteMeta("v"+secondVersion), s.sh(t, "smcgw status"))
		require.NotEqual(t, main, s.service(t, "MainPID"))
		require.Equal(t, "active", s.service(t, "ActiveState"))
		require.Equal(t, "0", s.service(t, "NRestarts"))
		require.Contains(t, s.sh(t, "smcgw status --socket /run/smcgw/smcgw.sock.old"), "v"+firstVersion)
		require.Contains(t, s.sh(t, "cat /etc/smcgw/smcgw.yaml"), "name: first")
		// A new connection is the new gateway's.
		e := s.ended(t, s.app(t, "transfer", "-up", "1000000", "-down", "1000000", "-to", s.peer.AddrPort4(transferPort).String()))
		require.Zero(t, e.Failed, "%+v", e)
		require.Regexp(t, `rdma-soft +\d connections?, 1 since the start`, s.sh(t, "smcgw status"))
		// It outlives the watchdog's timeout, for which only the new gateway answers.
		require.Eventually(t, func() bool {
			return strings.Contains(s.sh(t, "smcgw status --brief"), " up 4")
		}, 2*time.Minute, time.Second)
		require.Equal(t, "active", s.service(t, "ActiveState"))
		// The earlier connection has lost nothing.
		e = s.ended(t, hold)
		require.Zero(t, e.Failed, "%+v", e)
		require.Equal(t, 1200, e.OK, "%+v", e)
		require.Eventually(t, func() bool {
			return s.sh(t, "ls /run/smcgw/smcgw.sock.old 2>/dev/null || true") == ""
		}, time.Minute, time.Second, "the old gateway ends with its last connection")
		require.Equal(t, "active", s.service(t, "ActiveState"))
	})

	t.Run("the new gateway dies", func(t *testing.T) {
		main := s.service(t, "MainPID")
		s.sh(t, "kill -9 "+main)
		require.Eventually(t, func() bool {
			return s.service(t, "NRestarts") == "1" && s.service(t, "ActiveState") == "active"
		}, time.Minute, time.Second)
		s.sh(t, "smcgw status --strict")
	})

	t.Run("stop", func(t *testing.T) {
		hold := s.app(t, "ping", "-to", s.peer.AddrPort4(echoPort).String(), "-count", "100", "-gap", "50ms")
		require.Eventually(t, func() bool { return len(s.conns(t)) == 1 }, time.Minute, 100*time.Millisecond)
		s.sh(t, "systemctl stop smcgw")
		e := s.ended(t, hold)
		require.Equal(t, 100, e.OK, "a connection that ends in time is served: %+v", e)
		require.Equal(t, "inactive", s.service(t, "ActiveState"))
		s.sh(t, "systemctl start smcgw")
	})

	t.Run("purge", func(t *testing.T) {
		s.sh(t, "smcgw off")
		s.preload(t)
		out := s.sh(t, "apt-get purge -y smcgw 2>&1")
		require.NotContains(t, out, "not empty")
		require.NotContains(t, out, "ld.so")
		require.Equal(t, before, s.sh(t, traces), "nothing is left")
		s.sh(t, "! pgrep smcgw")
	})
	t.Run("rpm", s.lifeOfRPM)
}

// preload makes every program and a unit start with the library. A removed package must remove the line in the
// loader's list and the drop-in before the library, or traces would show it.
func (s *system) preload(t *testing.T) {
	t.Helper()
	s.sh(t, "smcgw preload enable systemd-tmpfiles-clean && smcgw preload enable --host")
	require.Contains(t, s.sh(t, "cat /etc/ld.so.preload"), "/usr/lib/smcgw/")
	require.Contains(t, s.sh(t, "cat /proc/self/maps"), "libsmcgw.so")
}

// lifeOfRPM does the same with the rpm, through rpm's own scripts and counts. Debian has no other packages as rpms,
// so dependencies are not checked.
func (s *system) lifeOfRPM(t *testing.T) {
	// These directories belong to Fedora's package filesystem; other rpms do not own them.
	s.sh(t, "mkdir -p /usr/share/fish/vendor_completions.d /usr/share/zsh/site-functions")
	before := s.sh(t, traces)
	s.sh(t, "rpm --initdb; rpm -i --nodeps /root/"+s.oldRPM+" 2>&1")
	require.Equal(t, "inactive", strings.TrimSpace(s.sh(t, "systemctl is-active smcgw || true")))
	require.Contains(t, s.sh(t, "rpm -qpR /root/"+s.oldRPM), "glibc >= ")
	s.sh(t, "rpm -V --nodeps smcgw; systemd-analyze verify --man=no smcgw.service; smcgw check; id smcgw")
	require.Contains(t, s.sh(t, "rpm -qc smcgw"), "/etc/smcgw/smcgw.yaml")
	require.Contains(t, s.sh(t, "rpm -ql smcgw"), "/usr/share/zsh/site-functions/_smcgw")

	s.sh(t, "cat >/etc/smcgw/smcgw.yaml <<'E'\n"+fmt.Sprintf(quickStart, s.at.Device)+"E\nsystemctl enable --now smcgw")
	hold := s.app(t, "ping", "-to", s.peer.AddrPort4(echoPort).String(), "-count", "200", "-gap", "50ms")
	require.Eventually(t, func() bool { return len(s.conns(t)) == 1 }, time.Minute, 100*time.Millisecond)
	main := s.service(t, "MainPID")
	require.NotContains(t, s.sh(t, "rpm -U --nodeps /root/"+s.newRPM+" 2>&1"), "goes on")
	require.Regexp(t, `smcgw `+regexp.QuoteMeta("v"+secondVersion), s.sh(t, "smcgw status"))
	require.NotEqual(t, main, s.service(t, "MainPID"))
	require.Equal(t, "0", s.service(t, "NRestarts"))
	e := s.ended(t, hold)
	require.Equal(t, 200, e.OK, "%+v", e)

	s.preload(t)
	out := s.sh(t, "rpm -e smcgw 2>&1")
	require.Contains(t, out, "/etc/smcgw/smcgw.yaml.rpmsave")
	require.NotContains(t, out, "ld.so")
	s.sh(t, "! pgrep smcgw; ! rpm -q smcgw >/dev/null")
	// Only what docs/operations/install.md "Uninstall" lists may be left.
	s.sh(t, "rm /etc/smcgw/smcgw.yaml.rpmsave; rmdir /etc/smcgw; rm -r /var/lib/smcgw; userdel smcgw; ! getent group smcgw >/dev/null")
	require.Equal(t, before, s.sh(t, traces))
}
