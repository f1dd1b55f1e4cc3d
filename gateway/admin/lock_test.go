package admin

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/testnet"
)

// TestLockIsNoLink: whoever owns the directory cannot have root give away, or lock, a file elsewhere.
func TestLockIsNoLink(t *testing.T) {
	testnet.Require(t, "root")
	dir, other := t.TempDir(), filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(other, nil, 0o600))
	require.NoError(t, os.Chown(dir, 12345, 12345))
	path := filepath.Join(dir, "lock")
	owner := func(file string) int {
		var st unix.Stat_t
		require.NoError(t, unix.Stat(file, &st))
		return int(st.Uid)
	}
	require.NoError(t, os.Symlink(other, path))
	_, err := lockFile(path)
	require.ErrorIs(t, err, unix.ELOOP)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Link(other, path))
	f, err := lockFile(path)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Zero(t, owner(other))
	require.NoError(t, os.Remove(path))
	for range 2 {
		f, err = lockFile(path)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.Equal(t, 12345, owner(path), "the owner of the directory opens it, too")
	}
}
