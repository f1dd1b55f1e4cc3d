package interop

import (
	"context"
	"errors"
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

// hostCases are tests of tests/e2e that need a kernel with more than a host of tests
// may have. Those of the sample are run by every make test.
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

// TestHosts runs tests between namespaces in a guest, with all its kinds of devices.
// Nothing of them may be skipped.
func TestHosts(t *testing.T) {
	g := bootHosts(t)
	for _, c := range hostCases {
		if c.sample == thorough() {
			continue
		}
		t.Run(c.name, func(t *testing.T) { g.test(t, c.name) })
	}
}

// hostsGuest is a guest in which namespaces play hosts.
type hostsGuest struct{ *guest.Guest }

// hostPrograms is where the programs under test are in the guest.
const hostPrograms = "/programs"

func bootHosts(t *testing.T) hostsGuest {
	testnet.Require(t, "vm", "bpf", "apt-get", "dpkg-deb", "xz", "zstd", "gcc")
	ctx := patience(t, 10*time.Minute)
	img, err := guest.Build(ctx, guest.Linux612)
	require.NoError(t, err)
	host, err := testnet.NewTapped(1500)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, host.Close()) })
	files := map[string]string{}
	for name, args := range map[string][]string{
		"smcgw":    {"build", "-trimpath", "-ldflags", "-s -w", "-o", "", "github.com/smcgw/smcgw/cmd/smcgw"},
		"visit":    {"build", "-trimpath", "-ldflags", "-s -w", "-o", "", "github.com/smcgw/smcgw/lab/visit/program"},
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
	g, err := guest.Boot(ctx, host, img, guest.Config{Files: files, Hosts: true, Memory: 2048})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("console of the guest:\n%s", g.Console())
		}
		require.NoError(t, g.Close())
	})
	_, err = g.Run(ctx, "mount", "-t", "cgroup2", "none", "/sys/fs/cgroup")
	require.NoError(t, err)
	return hostsGuest{g}
}

// test runs one test of tests/e2e, which must pass with all its parts.
func (g hostsGuest) test(t *testing.T, name string) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Minute, errors.New(name+" takes too long"))
	defer cancel()
	out, err := g.Run(ctx, "env",
		testnet.RequireVariable+"=root,bpf,kernel", "SMCGW_SLOWNESS=5", "SMCGW_FAULTS=all", "SMCGW_PROGRAMS="+hostPrograms,
		hostPrograms+"/e2e.test", "-test.v", "-test.timeout=50m", "-test.run", exactly(name))
	require.NoError(t, err, out)
	require.Contains(t, out, "--- PASS: "+name+" ")
	require.NotContains(t, out, "--- SKIP")
	passed := strings.Count(out, "--- PASS")
	t.Logf("%d parts passed", passed)
}

// exactly matches a test and all its parts.
func exactly(name string) string {
	parts := strings.Split(strings.ReplaceAll(name, " ", "_"), "/")
	for i, p := range parts {
		parts[i] = "^" + p + "$"
	}
	return strings.Join(parts, "/")
}
