package policy

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A pattern stands for the cgroups that exist now, each with the rules of all patterns
// that name it.
func TestCgroups(t *testing.T) {
	mount := t.TempDir()
	for _, dir := range []string{"a/x", "a/y", "b"} {
		require.NoError(t, os.MkdirAll(filepath.Join(mount, dir), 0o755))
	}
	p, err := Compile([]Rule{{Cgroups: []string{"/a/*"}}, {Cgroups: []string{"a/x", "c"}}, {}}, nil)
	require.NoError(t, err)
	want := map[uint64]uint64{}
	for dir, mask := range map[string]uint64{"a/x": 3, "a/y": 1} {
		id, err := cgroupID(filepath.Join(mount, dir))
		require.NoError(t, err)
		want[id] = mask
	}
	require.Equal(t, want, p.Cgroups(mount))
}
