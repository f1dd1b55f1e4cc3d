package shm

import (
	"net"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestEmptyHello: a message without bytes leaves no descriptor behind that came with it.
func TestEmptyHello(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(pair[1])
	near := os.NewFile(uintptr(pair[0]), "near")
	conn, err := net.FileConn(near)
	require.NoError(t, err)
	require.NoError(t, near.Close())
	c := conn.(*net.UnixConn)
	defer c.Close()
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(list)
	}
	runtime.GC() // files of earlier tests
	before := open()
	rights := unix.UnixRights(0, 0, 0)
	h := unix.Msghdr{Control: &rights[0]}
	h.SetControllen(len(rights))
	_, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(pair[1]), uintptr(unsafe.Pointer(&h)), 0) // sendmsg(2) of the library adds a byte
	require.Zero(t, errno)
	_, _, err = receiveMessage(c)
	require.Error(t, err)
	require.LessOrEqual(t, open(), before)
}
