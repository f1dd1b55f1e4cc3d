package interop

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/tests/interop/guest"
)

// Paths of the tests of rsocket/cm/kernel and verbs/hw/rdmacm in the guest.
const (
	kernelCM   = "/programs/kernel.test"
	kernelPath = "/programs/rdmacm.test"
)

// kernelTests maps them to their packages.
var kernelTests = map[string]string{kernelCM: "rsocket/cm/kernel", kernelPath: "verbs/hw/rdmacm"}

// TestKernelCM runs the tests of both packages with a kernel's manager, between queue pairs that are only numbers,
// which is all that it needs. With SMCGW_UPDATE=1 it records what the kernel says, for tests that have no kernel.
func TestKernelCM(t *testing.T) {
	testnet.Require(t, "vm", "apt-get", "dpkg-deb", "xz", "zstd", "gcc")
	files := map[string]string{}
	for program, pkg := range kernelTests {
		file := filepath.Join(t.TempDir(), filepath.Base(program))
		build(t.Context(), t, "0", "test", "-c", "-o", file, "github.com/smcgw/smcgw/"+pkg)
		files[program] = file
	}
	for _, k := range kernels() {
		t.Run("linux-"+string(k), func(t *testing.T) { kernelCMs(t, k, files) })
	}
}

func kernelCMs(t *testing.T, k guest.Series, files map[string]string) {
	l := bootWith(patience(t, 10*time.Minute), t, k, guest.Config{Files: files})
	for program, test := range map[string]string{kernelCM: "TestKernelConnection", kernelPath: "TestKernelPath"} {
		printed := l.run(t, "env", testnet.RequireVariable+"=kernel", "SMCGW_RDMACM_RECORD=/tmp/record", program, "-test.v", "-test.run", "^TestKernel")
		t.Log(printed)
		require.Contains(t, printed, "--- PASS: "+test)
		require.NotContains(t, printed, "SKIP")
	}
	printed := l.run(t, "env", testnet.RequireVariable+"=kernel", "SMCGW_RDMACM_REMOVE="+guest.Device+" eth0", kernelCM, "-test.v", "-test.run", "^TestRemovedFromKernel$")
	require.Contains(t, printed, "--- PASS: TestRemovedFromKernel")
	l.nothingLeft(t)
	if os.Getenv("SMCGW_UPDATE") == "" || k != guest.Linux612 {
		return
	}
	for name, program := range map[string]string{
		"TestKernelConnection": kernelCM, "TestKernelRefusals": kernelCM, "TestKernelPath": kernelPath,
	} {
		text := l.run(t, "cat", "/tmp/record."+name)
		to := filepath.Join("../..", kernelTests[program], "testdata", strings.TrimPrefix(name, "TestKernel")+".txt")
		require.NoError(t, os.WriteFile(to, []byte(text), 0o644)) //nolint:gosec // it is committed
	}
}

// bootWith starts a guest for one test.
func bootWith(ctx context.Context, t *testing.T, k guest.Series, cfg guest.Config) *lab {
	t.Helper()
	img, err := guest.Build(ctx, k)
	require.NoError(t, err)
	host, err := testnet.NewTapped(1500)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, host.Close()) })
	g, err := guest.Boot(ctx, host, img, cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("console of the guest:\n%s", g.Console())
		}
		require.NoError(t, g.Close())
	})
	return &lab{series: k, host: host, guest: g}
}

// nothingLeft requires that the guest's kernel has no resource of any program. The kernel's own have no process.
func (l *lab) nothingLeft(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(500 * time.Millisecond) {
		left := l.run(t, "sh", "-c", "for what in "+resources+"; do rdma res show $what; done")
		if !strings.Contains(left, " pid ") {
			return
		}
		require.True(t, time.Now().Before(deadline), left)
	}
}
