package guardian

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestThreads(t *testing.T) {
	proc := t.TempDir()
	thread := func(id int, files map[string]string) {
		dir := filepath.Join(proc, "task", strconv.Itoa(id))
		require.NoError(t, os.MkdirAll(dir, 0o700))
		for name, text := range files {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
	}
	require.Empty(t, threads(proc))
	thread(10, map[string]string{
		"stat":  "10 (smcgw) S) D 1 2 3",
		"stack": "[<0>] rtnl_lock+0x1/0x2\n[<0>] tun_chr_ioctl+0x1/0x2 [tun]\n",
		"wchan": "rtnl_lock",
	})
	thread(11, map[string]string{"stat": "11 (smcgw) S 1", "stack": "[<0>] futex_do_wait+0x1/0x2\n[<0>] do_futex+0x1/0x2\n"})
	thread(12, map[string]string{"stat": "12 (smcgw) S 1", "wchan": "ep_poll"})
	thread(13, map[string]string{"stat": "13 (smcgw) R 1", "wchan": "0"})
	thread(14, map[string]string{"stat": "14 (smcgw)"})
	thread(15, nil) // which has ended meanwhile
	require.Equal(t, []string{"10 D rtnl_lock < tun_chr_ioctl", "13 R", "14 ?", "15 ?"}, threads(proc))

	for id := 20; id < 40; id++ {
		thread(id, map[string]string{"stat": "1 (smcgw) R 1"})
	}
	require.Len(t, threads(proc), threadsShown+1)
}

// TestThreadsOfADaemon: a process is found by its pidfd.
func TestThreadsOfADaemon(t *testing.T) {
	pidfd := -1
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &unix.SysProcAttr{PidFD: &pidfd}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() { require.NoError(t, cmd.Wait()) }()
	defer in.Close()
	defer unix.Close(pidfd)
	require.Eventually(t, func() bool {
		busy := threads(daemonProc(pidfd))
		return len(busy) == 1 && strings.HasPrefix(busy[0], strconv.Itoa(cmd.Process.Pid)+" S")
	}, patience, time.Millisecond)
	require.Empty(t, threads(daemonProc(-1)))
}

// The time of a process is what its threads have run and waited for a processor, also those that still wait.
func TestBusyTime(t *testing.T) {
	proc := t.TempDir()
	for id, text := range []string{"1000 200 7\n", "30 4 1\n", "", "soon"} {
		dir := filepath.Join(proc, "task", strconv.Itoa(id+1))
		require.NoError(t, os.MkdirAll(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "schedstat"), []byte(text), 0o600))
	}
	then := busyTimes(proc)
	require.Equal(t, map[string]time.Duration{"1": 1200, "2": 34}, then)
	require.Empty(t, busyTimes(daemonProc(-1)))
	require.Positive(t, busySince("/proc/self", nil, 0))

	set := func(id, name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(proc, "task", id, name), []byte(text), 0o600))
	}
	require.Zero(t, busySince(proc, then, time.Second))
	set("2", "schedstat", "31 5 2\n")
	require.Equal(t, 2*time.Nanosecond, busySince(proc, then, time.Second))
	set("1", "stat", "1 (smcgw) R 1") // and got no processor
	require.Equal(t, time.Second+2, busySince(proc, then, time.Second))
	set("1", "stat", "1 (smcgw) S 1")
	require.Equal(t, 2*time.Nanosecond, busySince(proc, then, time.Second))
	set("2", "stat", "2 (smcgw) D 1") // though it has run for a moment
	require.Equal(t, time.Second, busySince(proc, then, time.Second))
	set("2", "stat", "2 (smcgw) S 1")
	require.NoError(t, os.RemoveAll(filepath.Join(proc, "task", "1"))) // it has ended
	require.Equal(t, 2*time.Nanosecond, busySince(proc, then, time.Second))
}

// TestLeaves: a process leaves when it has ended, reaped or not, and not while it runs.
func TestLeaves(t *testing.T) {
	require.False(t, leaves("/proc/self"))
	c := exec.Command("sleep", "1000")
	require.NoError(t, c.Start())
	proc := fmt.Sprintf("/proc/%d", c.Process.Pid)
	require.False(t, leaves(proc))
	require.NoError(t, c.Process.Kill())
	require.Eventually(t, func() bool { return leaves(proc) }, patience, time.Millisecond, "unreaped")
	require.Error(t, c.Wait())
	require.True(t, leaves(proc))
}
