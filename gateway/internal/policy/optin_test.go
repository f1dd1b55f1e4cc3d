package policy

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
)

// The rule of an opt-in decides before all others, and is about its cgroup only.
func TestOptIn(t *testing.T) {
	steer, mount := &fakePolicy{}, t.TempDir()
	ts := testTrials(steer)
	require.NoError(t, os.Mkdir(filepath.Join(mount, "a*b"), 0o700))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(filepath.Join(mount, "a*b"), &st))
	end, err := ts.OptIn(config.OptIn{Cgroup: "/a*b", ID: st.Ino}, mount)
	require.NoError(t, err)
	require.Len(t, steer.rules, 4)
	require.Equal(t, ebpf.Rule{Cgroups: []string{`/a\*b`}, Action: ebpf.ActionAccelerate, Share: ebpf.ShareAll}, steer.rules[0])
	require.Equal(t, 1, ts.Ahead())
	_, err = ebpf.CompilePolicy(steer.rules, nil)
	require.NoError(t, err)
	end()
	require.Len(t, steer.rules, 3)
	require.Zero(t, ts.Ahead())

	for _, bad := range []config.OptIn{{Cgroup: "/a*b", ID: st.Ino + 1}, {Cgroup: "/none", ID: 1}, {Cgroup: "a", ID: 1}, {Cgroup: "/", ID: 1}, {Cgroup: "/x/../a*b", ID: st.Ino}} {
		_, err := ts.OptIn(bad, mount)
		require.ErrorIs(t, err, config.ErrOptIn)
	}
	for range maxOptIns {
		_, err := ts.OptIn(config.OptIn{Cgroup: "/a*b", ID: st.Ino}, mount)
		require.NoError(t, err)
	}
	_, err = ts.OptIn(config.OptIn{Cgroup: "/a*b", ID: st.Ino}, mount)
	require.ErrorIs(t, err, config.ErrOptIn)
	steer.refuse = errUnwritten
	ts = testTrials(steer)
	_, err = ts.OptIn(config.OptIn{Cgroup: "/a*b", ID: st.Ino}, mount)
	require.ErrorIs(t, err, errUnwritten)
	require.Zero(t, ts.Ahead())
}
