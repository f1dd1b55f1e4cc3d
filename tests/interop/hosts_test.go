package interop

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/tests/interop/guest"
)

// hostCases are tests of tests/e2e that need a kernel with more than a test host may have. Every make test runs those
// of the sample. If a test is named without a part, each of its parts is a case.
var hostCases = []struct {
	name   string
	sample bool
}{
	{"TestDeviceKinds/vlan", true},
	{"TestDeviceKinds", false},
	{"TestFaultHosts/ipvsmasq-server-shm", false},
	{"TestFaultHosts/ipvsmasq-server-soft", false},
	{"TestFaultHosts/ipvsdirect-server-shm", false},
	{"TestFaultHosts/ipvsdirect-server-soft", false},
	{"TestFaultHosts/ipvsreal-server-shm", false},
	{"TestFaultHosts/ipvsreal-server-soft", false},
	{"TestFaultHosts/ipvsnode-client-shm", false},
	{"TestFaultHosts/ipvsnode-client-soft", false},
}

// TestHosts runs tests between namespaces in a guest that has all kinds of devices. None may be skipped. Each has a
// time limit of its own, and if the guest's kernel crashes, only the case that it crashes in fails.
func TestHosts(t *testing.T) {
	g := bootHosts(t, guest.Linux612)
	for _, c := range hostCases {
		if c.sample == thorough() {
			continue
		}
		for _, name := range g.parts(t, c.name) {
			if g.Ended() {
				g = bootHosts(t, guest.Linux612)
			}
			t.Run(name, func(t *testing.T) { g.test(t, name) })
		}
	}
}

// TestHostsWithoutTCX checks that with Debian 12's kernel, which is older than tcx, programs with the library are
// served.
func TestHostsWithoutTCX(t *testing.T) {
	g := bootHosts(t, guest.Linux61)
	g.test(t, "TestInProcessUnsteered")
}

// hostsGuest is a guest in which namespaces play hosts.
type hostsGuest struct{ *guest.Guest }

// hostPrograms is the directory of the programs under test in the guest.
const hostPrograms = "/programs"

func bootHosts(t *testing.T, series guest.Series) hostsGuest {
	testnet.Require(t, "vm", "bpf", "apt-get", "dpkg-deb", "xz", "zstd", "gcc")
	ctx := patience(t, 10*time.Minute)
	files := map[string]string{}
	for name, args := range map[string][]string{
		"smcgw":    {"build", "-trimpath", "-ldflags", "-s -w", "-o", "", "github.com/smcgw/smcgw/cmd/smcgw"},
		"e2e.test": {"test", "-c", "-trimpath", "-ldflags", "-s -w", "-o", "", "github.com/smcgw/smcgw/tests/e2e"},
	} {
		file := filepath.Join(t.TempDir(), name)
		args[slices.Index(args, "")] = file
		build := exec.CommandContext(ctx, "go", args...)
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=")
		out, err := build.CombinedOutput()
		require.NoError(t, err, "%s: %s", name, out)
		files[hostPrograms+"/"+name] = file
	}
	dir := t.TempDir()
	require.NoError(t, testnet.BuildLibrary(filepath.Join(dir, "libsmcgw.so")))
	out, err := exec.CommandContext(ctx, "gcc", "-O1", "-pthread", "-o", filepath.Join(dir, "stream"), "../e2e/testdata/inprocess/stream.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, name := range []string{"libsmcgw.so", "stream"} {
		files[hostPrograms+"/"+name] = filepath.Join(dir, name)
	}
	ctx = patience(t, 20*time.Minute) // the build had a time limit of its own
	g := bootWith(ctx, t, series, guest.Config{Files: files, Hosts: true, Memory: 2048}).guest
	_, err = g.Run(ctx, "mount", "-t", "cgroup2", "none", "/sys/fs/cgroup")
	require.NoError(t, err)
	return hostsGuest{g}
}

// hostLimit is how long a case may take in the guest, which gets a tenth of a busy machine.
const hostLimit = 20 * time.Minute

// parts returns the names of a test's direct parts, or of a part that part itself.
func (g hostsGuest) parts(t *testing.T, name string) []string {
	t.Helper()
	if strings.Contains(name, "/") {
		return []string{name}
	}
	// No part of a part has an empty name, so the parts print their names and do nothing.
	out := g.e2e(t, exactly(name)+"/./^$")
	var all []string
	for line := range strings.Lines(out) {
		if part, ok := strings.CutPrefix(strings.TrimSpace(line), "=== RUN   "+name+"/"); ok {
			all = append(all, name+"/"+part)
		}
	}
	require.NotEmpty(t, all, out)
	return all
}

// test runs one test of tests/e2e, which must pass with all its parts.
func (g hostsGuest) test(t *testing.T, name string) {
	out := g.e2e(t, exactly(name))
	require.Contains(t, out, "--- PASS: "+name+" ")
	require.NotContains(t, out, "--- SKIP")
	t.Log(verdicts(out))
}

// e2e runs tests of tests/e2e and returns their output.
func (g hostsGuest) e2e(t *testing.T, pattern string) string {
	t.Helper()
	// The program's own timeout comes first, and reports where it was.
	out, err := g.Run(patience(t, hostLimit+time.Minute), "env",
		testnet.RequireVariable+"=root,bpf,kernel", "SMCGW_SLOWNESS=5", "SMCGW_FAULTS=all", "SMCGW_PROGRAMS="+hostPrograms,
		hostPrograms+"/e2e.test", "-test.v", "-test.timeout", hostLimit.String(), "-test.run", pattern)
	require.NoError(t, err)
	return out
}

// verdicts returns the lines of a test's output that report finished parts, and what these have logged.
func verdicts(out string) string {
	var all strings.Builder
	for line := range strings.Lines(out) {
		if strings.Contains(line, "--- PASS") || strings.Contains(line, "_test.go:") {
			all.WriteString(line)
		}
	}
	return all.String()
}

// exactly matches a test and all its parts.
func exactly(name string) string {
	parts := strings.Split(strings.ReplaceAll(name, " ", "_"), "/")
	for i, p := range parts {
		parts[i] = "^" + p + "$"
	}
	return strings.Join(parts, "/")
}
