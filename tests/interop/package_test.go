package interop

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/tests/interop/guest"
	"github.com/smcgw/smcgw/tests/interop/guest/remote"
)

// Versions of the packages under test, the second one an upgrade of the first.
const (
	firstVersion  = "9.0.1"
	secondVersion = "9.0.2"
)

// quickStart is the configuration of docs/operations/install.md "Quick start".
const quickStart = `schema: smcgw/v1
mode: enforce
devices: [eth0]
policy:
  - name: first
    match: { ports: [7000, 7001] }
    action: accelerate
carriers: [shm, soft]
limits: { handshake_timeout: 5s }
`

// system is a Debian with systemd in a guest, and a host with a gateway of its own on
// the other end of its cable.
type system struct {
	*machines

	old string // the version before, in /root
	new string
}

// makePackages builds the packages of two versions.
func makePackages(ctx context.Context, t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, version := range []string{firstVersion, secondVersion} {
		dir := t.TempDir()
		cmd := exec.CommandContext(ctx, "make", "-C", "../..", "package",
			"VERSION=v"+version, "DIST="+dir, "HW="+filepath.Join(dir, "smcgw"))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		name := "smcgw_" + version + "-1_amd64.deb"
		files["/root/"+name] = filepath.Join(dir, name)
		files["program "+version] = filepath.Join(dir, "smcgw")
	}
	return files
}

func newSystem(t *testing.T) *system {
	testnet.Require(t, "vm", "bpf", "apt-get", "dpkg-deb", "xz", "zstd", "gcc", "mmdebstrap", "man")
	ctx := patience(t, 15*time.Minute)
	img, err := guest.Build(ctx, guest.Linux612)
	require.NoError(t, err)
	root, err := guest.BuildSystem(ctx)
	require.NoError(t, err)
	files := makePackages(ctx, t)
	program := files["program "+secondVersion]
	delete(files, "program "+firstVersion)
	delete(files, "program "+secondVersion)
	dir := t.TempDir()
	lab := filepath.Join(dir, "smcgw-lab")
	build := exec.CommandContext(ctx, "go", "build", "-o", lab, "github.com/smcgw/smcgw/cmd/smcgw-lab")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	files["/root/smcgw-lab"] = lab

	s := &system{
		machines: &machines{},
		old:      "/root/smcgw_" + firstVersion + "-1_amd64.deb", new: "/root/smcgw_" + secondVersion + "-1_amd64.deb",
	}
	s.host, err = testnet.NewTapped(1500)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.host.Close()) })
	s.guest, err = guest.Boot(ctx, s.host, img, guest.Config{System: root, Files: files, Memory: 2048})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := s.guest.Run(patienceAfter(t, time.Minute), "journalctl", "--no-pager", "-u", "smcgw", "-n", "200")
			t.Logf("journal of the guest:\n%s", out)
		}
		require.NoError(t, s.guest.Close())
	})
	s.inHost(ctx, t, dir, program)
	return s
}

// sh runs a line of shell in the guest, which must succeed.
func (s *system) sh(t *testing.T, line string) string {
	t.Helper()
	out, err := s.guest.Run(patience(t, 5*time.Minute), "sh", "-c", line)
	require.NoError(t, err, "%s: %s", line, out)
	return out
}

// app starts a client of the host's servers in the guest.
func (s *system) app(t *testing.T, args ...string) *remote.Process {
	t.Helper()
	return s.start(t, append([]string{"env", apps.Variable + "=1", "/root/smcgw-lab"}, args...)...)
}

// traces are what a gateway could leave: files, devices, rules, settings, programs,
// users, units.
const traces = `
find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path /var/log -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/lib/systemd \) -prune -o -print | sort
find /run -name '*smcgw*' | sort
cat /etc/passwd /etc/group
ip -o link | sed 's/ qlen.*//'
ip rule; ip -6 rule; ip route show table all; ip -6 route show table all
sysctl -a 2>/dev/null | grep -E '^net\.(ipv4|ipv6|core)\.' | grep -vE 'stable_secret|hystart|_mem|nf_conntrack_count|tcp_fastopen_key|random'
bpftool cgroup tree; bpftool net show
bpftool prog show | grep -v sd_ | sed -n 's/.* name \([a-z_0-9]*\).*/\1/p' | sort
ss -Htulpn | awk '{print $1, $5}'
systemctl list-unit-files --no-legend | sort
`

// service is what systemd knows of the unit.
func (s *system) service(t *testing.T, property string) string {
	t.Helper()
	return strings.TrimSpace(s.sh(t, "systemctl show -P "+property+" smcgw"))
}

// TestPackage is the life of a package on a Debian: installed, configured by ten lines,
// upgraded and reloaded while connections are carried, killed, purged.
func TestPackage(t *testing.T) {
	s := newSystem(t)
	before := s.sh(t, traces)

	t.Run("install", func(t *testing.T) {
		out := s.sh(t, "apt-get install -y "+s.old+" 2>&1")
		require.Contains(t, out, "systemctl enable --now smcgw")
		require.Equal(t, "inactive", strings.TrimSpace(s.sh(t, "systemctl is-active smcgw || true")))
		require.Equal(t, "disabled", strings.TrimSpace(s.sh(t, "systemctl is-enabled smcgw || true")))
		s.sh(t, "systemd-analyze verify --man=no smcgw.service && smcgw check && id smcgw")
		out = s.sh(t, "dpkg -L smcgw")
		for _, file := range []string{
			"/usr/share/man/man1/smcgw-status.1.gz", "/usr/share/bash-completion/completions/smcgw",
			"/usr/share/doc/smcgw/prometheus/smcgw.rules.yaml", "/usr/share/doc/smcgw/operations/install.md",
		} {
			require.Contains(t, out, file)
			require.NotEmpty(t, s.sh(t, "cat "+file))
		}
	})

	t.Run("observe", func(t *testing.T) {
		s.sh(t, "systemctl enable --now smcgw")
		require.Contains(t, s.sh(t, "smcgw status --strict"), "mode observe, 0 flows carried")
		require.Contains(t, s.sh(t, "smcgw version"), firstVersion)
		for _, pid := range strings.Fields(s.sh(t, "pgrep smcgw")) {
			status := s.sh(t, "cat /proc/"+pid+"/status")
			require.NotRegexp(t, `(?m)^Uid:\s+0`, status)
			require.Contains(t, status, "Seccomp:\t2")
		}
	})

	hold := (*remote.Process)(nil)
	t.Run("quick start", func(t *testing.T) {
		s.sh(t, "cat >/etc/smcgw/smcgw.yaml <<'E'\n"+quickStart+"E\nsystemctl reload smcgw")

		hold = s.app(t, "ping", "-to", at(s.host.Addr4, echoPort), "-count", "3000", "-gap", "50ms")
		var list admin.ConnList
		require.Eventually(t, func() bool {
			require.NoError(t, json.Unmarshal([]byte(s.sh(t, "smcgw conns --json")), &list))
			return len(list.Conns) == 1 && list.Conns[0].Carrier == "rdma-soft"
		}, time.Minute, time.Second)
	})

	main := s.service(t, "MainPID")
	t.Run("a refused configuration", func(t *testing.T) {
		s.sh(t, "cp /etc/smcgw/smcgw.yaml /root/; echo 'mdoe: off' >>/etc/smcgw/smcgw.yaml; ! systemctl reload smcgw")
		require.Contains(t, s.sh(t, "smcgw status; journalctl --no-pager -u smcgw"), "mdoe")
		s.sh(t, "cp /root/smcgw.yaml /etc/smcgw/; systemctl reload smcgw; smcgw status --strict")
		require.Equal(t, main, s.service(t, "MainPID"))
	})

	t.Run("upgrade", func(t *testing.T) {
		out := s.sh(t, "apt-get install -y "+s.new+" 2>&1")
		require.NotContains(t, out, "goes on")
		require.Regexp(t, `smcgw `+regexp.QuoteMeta("v"+secondVersion), s.sh(t, "smcgw status"))
		require.NotEqual(t, main, s.service(t, "MainPID"))
		require.Equal(t, "active", s.service(t, "ActiveState"))
		require.Equal(t, "0", s.service(t, "NRestarts"))
		require.Contains(t, s.sh(t, "smcgw status --socket /run/smcgw/smcgw.sock.old"), "v"+firstVersion)
		require.Contains(t, s.sh(t, "cat /etc/smcgw/smcgw.yaml"), "name: first")
		// A new connection is the new gateway's.
		e := s.result(patience(t, 3*time.Minute), t, s.app(t, "transfer", "-up", "1000000", "-down", "1000000", "-to", at(s.host.Addr4, transferPort)))
		require.Zero(t, e.Failed, "%+v", e)
		require.Regexp(t, `rdma-soft +\d flows, 1 since the start`, s.sh(t, "smcgw status"))
		// It outlives the watchdog's time, which only the new gateway is asked for.
		require.Eventually(t, func() bool {
			return strings.Contains(s.sh(t, "smcgw status --brief"), " up 4")
		}, 2*time.Minute, time.Second)
		require.Equal(t, "active", s.service(t, "ActiveState"))
		// The connection of before has lost nothing.
		e = s.result(patience(t, 10*time.Minute), t, hold)
		require.Zero(t, e.Failed, "%+v", e)
		require.Equal(t, 3000, e.OK, "%+v", e)
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
		hold := s.app(t, "ping", "-to", at(s.host.Addr4, echoPort), "-count", "100", "-gap", "50ms")
		require.Eventually(t, func() bool { return strings.Contains(s.sh(t, "smcgw conns"), "rdma-soft") }, time.Minute, time.Second)
		s.sh(t, "systemctl stop smcgw")
		e := s.result(patience(t, time.Minute), t, hold)
		require.Equal(t, 100, e.OK, "a connection that ends in time is served: %+v", e)
		require.Equal(t, "inactive", s.service(t, "ActiveState"))
		s.sh(t, "systemctl start smcgw")
	})

	t.Run("purge", func(t *testing.T) {
		s.sh(t, "smcgw off")
		out := s.sh(t, "apt-get purge -y smcgw 2>&1")
		require.NotContains(t, out, "not empty")
		require.Equal(t, before, s.sh(t, traces), "nothing is left")
		s.sh(t, "! pgrep smcgw")
	})
}
