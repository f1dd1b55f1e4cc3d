package shm

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/fdpass"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/loop"
)

// TestAttachWhileLoopSleeps: a loop that sleeps while a peer attaches turns for that peer.
func TestAttachWhileLoopSleeps(t *testing.T) {
	dir := t.TempDir()
	a, b := openDevice(t, dir), openDevice(t, dir)
	_, err := b.Listen()
	require.NoError(t, err)
	la, err := loop.New(a, 0, nil)
	require.NoError(t, err)
	defer la.Close()
	lb, err := loop.New(b, 0, nil)
	require.NoError(t, err)
	defer lb.Close()
	time.Sleep(50 * time.Millisecond) // both sleep
	pb, err := b.Offer()
	require.NoError(t, err)
	pa, err := a.Attach(context.Background(), pb.Name(), pb.Key())
	require.NoError(t, err)
	seen := make(chan struct{})
	pa.AfterGrace(func() { close(seen) })
	select {
	case <-seen:
	case <-time.After(10 * time.Second):
		require.Fail(t, "the loop sleeps")
	}
}

// A rendezvous that fails because this process has no descriptors says so, and does not
// blame the peer.
func TestRendezvousNeedsDescriptors(t *testing.T) {
	near, far, err := fdpass.Pair("rendezvous")
	require.NoError(t, err)
	var ends [2]*net.UnixConn
	for i, f := range []*os.File{near, far} {
		ends[i], err = fdpass.Conn(f)
		require.NoError(t, err)
		defer ends[i].Close()
	}
	m := message{kind: typeHello, vectors: 3, gateway: newID()}
	require.NoError(t, sendMessage(ends[0], m, 0, 0, 0, 0))
	before := len(leak.OpenFiles())
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	free, err := unix.Dup(0)
	require.NoError(t, err)
	require.NoError(t, unix.Close(free))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free) + 2, Max: limit.Max}))
	_, _, err = receiveMessage(ends[1])
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.ErrorIs(t, err, unix.EMFILE)
	require.NotErrorIs(t, err, ErrMessage)
	require.LessOrEqual(t, len(leak.OpenFiles()), before)
}
