//go:build cgo && hw

package ibv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// asksEnv is a library in place of libibverbs, which tells when it is loaded what it would
// read of the environment.
const asksEnv = `
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void loaded(void)
{
	const char *v = getenv("RDMAV_ALLOW_DISASSOC_DESTROY");

	printf("loaded: %s\n", v ? v : "unset");
	fflush(stdout);
}
`

// The library is told to free its half of objects that the kernel has taken away, unless the
// environment says otherwise. It reads that when it is first used, so the test loads one in
// another process.
func TestLoadAllowsDestructionBehindDisassociation(t *testing.T) {
	if os.Getenv("SMCGW_TEST_LOAD") != "" {
		_, err := Load()
		require.ErrorIs(t, err, ErrLibraryAbsent, "it has no functions")
		return
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "library.c")
	require.NoError(t, os.WriteFile(source, []byte(asksEnv), 0o600))
	out, err := exec.CommandContext(t.Context(), cc, "-shared", "-fPIC", "-o", filepath.Join(dir, "libibverbs.so.1"), source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	loaded := func(env ...string) string {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(append(os.Environ(), "SMCGW_TEST_LOAD=1", "LD_LIBRARY_PATH="+dir), env...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	require.Contains(t, loaded(), "loaded: 1\n")
	require.Contains(t, loaded("RDMAV_ALLOW_DISASSOC_DESTROY=0"), "loaded: 0\n")
}
