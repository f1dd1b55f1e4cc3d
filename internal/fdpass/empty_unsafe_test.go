package fdpass

import (
	"io"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/leak"
)

// TestEmptyPacket: a packet without bytes is the end, and leaves no descriptor behind that came with it.
func TestEmptyPacket(t *testing.T) {
	near, far, err := Pair("empty")
	require.NoError(t, err)
	defer far.Close()
	c, err := Conn(near)
	require.NoError(t, err)
	defer c.Close()
	runtime.GC() // files of earlier tests
	before := len(leak.OpenFiles())
	rights := unix.UnixRights(0, 0, 0)
	h := unix.Msghdr{Control: &rights[0]}
	h.SetControllen(len(rights))
	_, _, errno := unix.Syscall(unix.SYS_SENDMSG, far.Fd(), uintptr(unsafe.Pointer(&h)), 0) // sendmsg(2) of the library adds a byte
	require.Zero(t, errno)
	_, fds, _, err := Receive(c, make([]byte, 16))
	require.ErrorIs(t, err, io.EOF)
	require.Empty(t, fds)
	require.LessOrEqual(t, len(leak.OpenFiles()), before)
}
