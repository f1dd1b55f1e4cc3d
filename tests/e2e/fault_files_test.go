package e2e

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/testnet"
)

// TestFaultKeysNotRead: while a reload waits for its keys, as on a server that does not answer,
// the gateway is switched, carries and stops as ever.
func TestFaultKeysNotRead(t *testing.T) {
	t.Parallel()
	count := newTally(t)
	w := newWorld(t, testnet.Config{})
	w.serve(w.h2)
	g := w.up(w.h1, settings{Extra: w.keys(w.h1, keyOne)})
	w.up(w.h2, settings{Extra: w.keys(w.h2, keyOne)})
	held := w.holdCarried(t, g, 4)

	// An open waits for the end of a lease, 45 seconds at most.
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
		out, err := g.cli(verb)
		require.NoError(t, err, out)
	}
	e := w.comesToCarry(w.h2.AddrPort4(echoPort).String(), w.flush)
	count.result(e)
	require.NoError(t, held.Send("ping"))
	require.NoError(t, held.CloseInput())
	e = result(t, held)
	require.Zero(t, e.Failed, "%+v", e)
	count.result(e)
	g.signal(g.proc.Pid(), syscall.SIGTERM)
	g.exited(t, 0)
}
