package shm

import (
	"os"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/fdpass"
)

// TestEmptyHello: a message without bytes leaves no descriptor behind that came with it.
func TestEmptyHello(t *testing.T) {
	near, far, err := fdpass.Pair("empty")
	require.NoError(t, err)
	defer far.Close()
	c, err := fdpass.Conn(near)
	require.NoError(t, err)
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
	_, _, errno := unix.Syscall(unix.SYS_SENDMSG, far.Fd(), uintptr(unsafe.Pointer(&h)), 0) // sendmsg(2) of the library adds a byte
	require.Zero(t, errno)
	_, _, err = receiveMessage(c)
	require.Error(t, err)
	require.LessOrEqual(t, open(), before)
}
