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

// kernelCM is where the tests of verbs/hw/rdmacm are in the guest.
const kernelCM = "/programs/rdmacm.test"

// TestKernelCM runs the tests of verbs/hw/rdmacm with the manager of a kernel, between queue pairs that are numbers: it
// needs no other. With SMCGW_UPDATE=1 it writes down what the kernel says, for the tests that have no kernel.
func TestKernelCM(t *testing.T) {
	testnet.Require(t, "vm", "apt-get", "dpkg-deb", "xz", "zstd", "gcc")
	file := filepath.Join(t.TempDir(), "rdmacm.test")
	build(t.Context(), t, "0", "test", "-c", "-trimpath", "-ldflags", "-s -w", "-o", file, "github.com/smcgw/smcgw/verbs/hw/rdmacm")
	for _, k := range kernels() {
		t.Run("linux-"+string(k), func(t *testing.T) { kernelCMs(t, k, file) })
	}
}

func kernelCMs(t *testing.T, k guest.Series, file string) {
	l := bootWith(patience(t, 10*time.Minute), t, k, guest.Config{Files: map[string]string{kernelCM: file}})
	printed := l.run(t, "env", testnet.RequireVariable+"=kernel", "SMCGW_RDMACM_RECORD=/tmp/record", kernelCM, "-test.v", "-test.run", "^TestKernel")
	t.Log(printed)
	require.Contains(t, printed, "--- PASS: TestKernelConnection")
	require.NotContains(t, printed, "SKIP")
	printed = l.run(t, "env", testnet.RequireVariable+"=kernel", "SMCGW_RDMACM_REMOVE="+guest.Device+" eth0", kernelCM, "-test.v", "-test.run", "^TestRemovedFromKernel$")
	require.Contains(t, printed, "--- PASS: TestRemovedFromKernel")
	l.nothingLeft(t)
	if os.Getenv("SMCGW_UPDATE") == "" || k != guest.Linux612 {
		return
	}
	for _, name := range []string{"TestKernelConnection", "TestKernelRefusals", "TestKernelPath"} {
		text := l.run(t, "cat", "/tmp/record."+name)
		to := filepath.Join("../../verbs/hw/rdmacm/testdata", strings.TrimPrefix(name, "TestKernel")+".txt")
		require.NoError(t, os.WriteFile(to, []byte(text), 0o644)) //nolint:gosec // it is committed
	}
}

// bootWith starts a guest of the test's own.
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

// nothingLeft wants the guest's kernel to have no resource of any program. Its own have no process.
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
