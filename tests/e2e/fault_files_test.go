package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
)

// TestFaultKeysNotRead checks that a gateway can be switched, carries and stops as usual while a reload waits for its
// keys, as on a server that does not answer.
func TestFaultKeysNotRead(t *testing.T) {
	t.Parallel()
	count := newTally(t)
	w := newServed(t)
	g := w.up(w.h1, settings{Extra: w.keys(w.h1, keyOne)})
	w.up(w.h2, settings{Extra: w.keys(w.h2, keyOne)})
	held := w.holdCarried(t, g, 4)

	// An open waits until the lease ends, for 45 seconds at most.
	f, err := os.OpenFile(filepath.Join(w.dir, w.h1.Name+".psk"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	require.NoError(t, err)
	g.signal(g.proc.Pid(), syscall.SIGHUP)
	require.Eventually(t, func() bool {
		kind, err := unix.FcntlInt(f.Fd(), unix.F_GETLEASE, 0)
		return err == nil && kind == unix.F_RDLCK
	}, 30*time.Second, time.Millisecond, "the gateway opens the file")
	count.faults(1)
	for _, verb := range []string{"off", "on"} {
		g.says(verb)
	}
	e := w.comesToCarry(w.h2.AddrPort4(echoPort).String(), w.flush)
	count.result(e)
	count.result(lastPing(t, held))
	g.signal(g.proc.Pid(), syscall.SIGTERM)
	g.exited(t, 0)
}

// TestFaultStateNotRead checks that a gateway whose state_dir is on a server that does not answer starts, answers and
// stops. It stays off until the server answers, and can be switched off.
func TestFaultStateNotRead(t *testing.T) {
	t.Parallel()
	count := newTally(t)
	w := newServed(t)
	w.up(w.h2, settings{})
	w.deadServer(filepath.Join(w.dir, w.h1.Name+".state"))
	count.faults(1)
	g := w.up(w.h1, settings{})
	require.Equal(t, report.ModeOff, g.status().Mode)
	require.Contains(t, g.status().Notes, "state_dir: smcgw off would not outlast this gateway: the server of state_dir does not answer")
	e := w.mustApp(w.h1, "ping", "-count", "20", "-to", w.h2.AddrPort4(echoPort).String())
	count.result(e)
	require.Zero(t, g.status().FlowsTotal[w.via])
	out, err := g.cli("off")
	require.Error(t, err)
	require.Contains(t, out, "new connections are native from now on, but not after a restart of the gateway: the server of state_dir does not answer")
	out, err = g.cli("on")
	require.Error(t, err)
	require.Contains(t, out, "the server of state_dir does not answer")
	require.Equal(t, report.ModeOff, g.status().Mode)
	g.signal(g.proc.Pid(), syscall.SIGTERM)
	g.exited(t, 0)
}

// deadServer mounts a file system on a directory whose server answers nothing until the test ends.
func (w *world) deadServer(dir string) {
	w.t.Helper()
	require.NoError(w.t, os.Mkdir(dir, 0o700))
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	require.NoError(w.t, err)
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd())
	require.NoError(w.t, unix.Mount("dead", dir, "fuse", 0, options))
	w.t.Cleanup(func() {
		require.NoError(w.t, server.Close())
		require.NoError(w.t, unix.Unmount(dir, unix.MNT_DETACH))
	})
}
