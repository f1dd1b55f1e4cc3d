package interop

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/tests/interop/guest"
)

// TestVerifier has the guest's kernel verify the steering programs: a verifier older than the host's proves less
// about them.
func TestVerifier(t *testing.T) {
	onKernels(t, func(t *testing.T, l *lab) {
		if l.series == guest.Linux61 {
			return // tcx came with 6.6
		}
		binary := filepath.Join(t.TempDir(), "ebpf.test")
		build := exec.CommandContext(t.Context(), "go", "test", "-c", "-ldflags", "-s -w", "-o", binary, "github.com/smcgw/smcgw/ebpf")
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=")
		out, err := build.CombinedOutput()
		require.NoError(t, err, string(out))
		at := l.serve(t, binary)
		l.run(t, "sh", "-c", fmt.Sprintf("nc %s %d >/ebpf.test && chmod +x /ebpf.test", at.Addr(), at.Port()))
		said := l.run(t, "sh", "-c", "SMCGW_REQUIRE=root,bpf /ebpf.test -test.v -test.run '^TestVerifier$'; status=$?; rm /ebpf.test; exit $status")
		require.Contains(t, said, "--- PASS: TestVerifier")
	})
}

// serve sends a file to the first client.
func (l *lab) serve(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	content, err := os.ReadFile(name)
	require.NoError(t, err)
	ln, err := l.host.Listen("tcp4", netip.AddrPortFrom(l.host.Addr4, 0).String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		_, _ = c.Write(content) // the guest notices what is missing
		_ = c.Close()
	}()
	return netip.MustParseAddrPort(ln.Addr().String())
}
