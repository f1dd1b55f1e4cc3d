package inspect

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
)

// What a kernel lacks is named, not found out by the verifier.
func TestKernelLacks(t *testing.T) {
	here, missing := t.TempDir(), filepath.Join(t.TempDir(), "vmlinux")
	for _, c := range []struct{ release, btf, want string }{
		{"6.6.0", here, ""},
		{"6.18.44-fc", here, ""},
		{"7.0", here, ""},
		{"6.5.13-generic", here, "kernel 6.5.13-generic lacks tcx links (Linux 6.6)"},
		{"5.15.0-91-generic", missing, "kernel 5.15.0-91-generic lacks tcx links (Linux 6.6)"},
		{"6.12.0", missing, "kernel 6.12.0 lacks BTF: no " + missing + " (CONFIG_DEBUG_INFO_BTF)"},
	} {
		err := checkFeatures(c.release, c.btf)
		if c.want == "" {
			require.NoError(t, err, c.release)
			continue
		}
		require.EqualError(t, err, c.want)
		require.ErrorIs(t, err, ErrKernel)
		var lacks *KernelError
		require.ErrorAs(t, err, &lacks)
		require.Equal(t, c.release, lacks.Release)
	}
	require.ErrorContains(t, checkFeatures("linux", here), `kernel release "linux"`)
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
