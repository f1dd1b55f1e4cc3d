package adopt

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/inprocess/scan"
)

func TestLibraryIsFound(t *testing.T) {
	root := t.TempDir()
	bin, lib := filepath.Join(root, "bin"), filepath.Join(root, "lib", "smcgw")
	require.NoError(t, os.MkdirAll(bin, 0o700))
	require.NoError(t, os.MkdirAll(lib, 0o700))
	own := filepath.Join(bin, "smcgw")
	put := func(at string) string {
		require.NoError(t, os.WriteFile(at, nil, 0o600))
		return at
	}
	var missing *LibraryError
	_, err := Library(scan.Musl, "", own)
	if !strings.Contains(err.Error(), "/usr/lib/smcgw/libsmcgw-musl.so") {
		t.Fatal(err)
	}
	require.ErrorAs(t, err, &missing)
	installed := put(filepath.Join(lib, "libsmcgw-musl.so"))
	got, err := Library(scan.Musl, "", own)
	require.NoError(t, err)
	require.Equal(t, installed, got)
	beside := put(filepath.Join(bin, "libsmcgw-musl.so"))
	got, err = Library(scan.Musl, "", own)
	require.NoError(t, err)
	require.Equal(t, beside, got)
	got, err = Library(scan.Glibc, installed, own)
	require.NoError(t, err)
	require.Equal(t, installed, got)
	_, err = Library(scan.Glibc, put(filepath.Join(root, "a b.so")), own)
	require.ErrorIs(t, err, errSeparator)
	_, err = Library(scan.Glibc, filepath.Join(root, "none"), own)
	require.ErrorAs(t, err, &missing)
}

func TestEnvironment(t *testing.T) {
	got := Environment([]string{"A=b", "LD_PRELOAD=/x.so", "SMCGW_RUN=1", "SMCGW_SOCKET=/old"}, "/l.so", "/s", 1<<64-1)
	require.Equal(t, []string{"A=b", "LD_PRELOAD=/l.so:/x.so", "SMCGW_SOCKET=/s", "SMCGW_RUN=" + strconv.FormatUint(1<<64-1, 10)}, got)
	require.Contains(t, Environment(nil, "/l.so", "/s", 1), "LD_PRELOAD=/l.so")
}
