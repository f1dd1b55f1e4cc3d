package testnet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A detached grandchild, as daemons are, must not survive its host.
func TestCloseEndsEverything(t *testing.T) {
	Require(t, "root", "bpf")
	n, err := New(Config{Hosts: []string{"h1"}})
	require.NoError(t, err)
	defer n.Close()
	h := n.Host("h1")
	path := h.NamespacePath()
	require.FileExists(t, path)
	p, err := h.Start("setsid", "sh", "-c", "sleep 1000 & echo started; exec sleep 1000")
	require.NoError(t, err)
	require.NoError(t, p.WaitOutput(patience(t, 30*time.Second), "started"))
	require.GreaterOrEqual(t, len(h.Processes()), 2)
	pids := h.Processes()
	require.NoError(t, n.Close())
	for _, pid := range pids {
		require.Eventually(t, func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) }, 30*time.Second, time.Millisecond)
	}
	require.NoFileExists(t, path)
	require.NoError(t, n.Close())
	require.ErrorIs(t, h.Command(t.Context(), "true").Start(), os.ErrClosed)
}

// Programs that make namespaces beside the tests disturb none.
func TestNamespaceBesideOthers(t *testing.T) {
	Require(t, "root", "ip")
	own, err := ownerName(os.Getpid())
	require.NoError(t, err)
	h, err := newNamespace(own + "-beside-1")
	require.NoError(t, err)
	require.NoError(t, h.Close())
	other := own + "-beside-2"
	for _, verb := range []string{"add", "delete"} {
		out, err := exec.Command("ip", "netns", verb, other).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	require.NoError(t, deleteNamespace(own+"-beside-1"))
	require.NoFileExists(t, filepath.Join(runDir, own+"-beside-1"))
}

func TestSweep(t *testing.T) {
	Require(t, "root")
	// Process 2^22 cannot exist: it is the limit of pid_max.
	name := namePrefix + "4194304-1-1-h1"
	h, err := newNamespace(name)
	require.NoError(t, err)
	require.NoError(t, h.Close())
	own, err := ownerName(os.Getpid())
	require.NoError(t, err)
	require.False(t, orphaned(own+"-1-h1"))
	require.False(t, orphaned("somebodys"))
	require.False(t, orphaned(namePrefix+"x-1-1"))
	// Same process id, other start time: recycled.
	require.True(t, orphaned(fmt.Sprintf("%s%d-1-1-h1", namePrefix, os.Getpid())))
	require.NoError(t, Sweep())
	require.NoFileExists(t, filepath.Join(runDir, name))
}

// recorder is a TB that notes how a test would have ended.
type recorder struct {
	TB
	skipped, failed string
}

func (r *recorder) Helper()                   {}
func (r *recorder) Skipf(f string, a ...any)  { r.skipped = fmt.Sprintf(f, a...) }
func (r *recorder) Fatalf(f string, a ...any) { r.failed = fmt.Sprintf(f, a...) }

func TestRequire(t *testing.T) {
	for _, c := range []struct{ require, need, skipped, failed string }{
		{"", "no-such-program", "no-such-program", ""},
		{"bpf", "no-such-program", "no-such-program", ""},
		{"no-such-program", "no-such-program", "", "no-such-program"},
		{"root,bpf", "no-such-program", "", "no-such-program"},
		{"root,bpf", "sh", "", ""},
	} {
		t.Setenv(RequireVariable, c.require)
		r := &recorder{TB: t}
		Require(r, c.need)
		require.Equal(t, c.skipped == "", r.skipped == "", r.skipped)
		require.Contains(t, r.skipped, c.skipped)
		require.Equal(t, c.failed == "", r.failed == "", r.failed)
		require.Contains(t, r.failed, c.failed)
	}
}
