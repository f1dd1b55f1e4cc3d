package gateway

import (
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestHeartbeatOfAMap reads a map like the programs' one.
func TestHeartbeatOfAMap(t *testing.T) {
	create := struct{ kind, keySize, valueSize, entries uint32 }{unix.BPF_MAP_TYPE_ARRAY, 4, 8, 1}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_CREATE, uintptr(unsafe.Pointer(&create)), unsafe.Sizeof(create))
	if errno == unix.EPERM {
		t.Skip("needs the right to create eBPF maps")
	}
	require.Zero(t, errno)
	f := os.NewFile(fd, "map")
	defer f.Close()
	h := mapHeartbeat{f}
	v, err := h.Read()
	require.NoError(t, err)
	require.Zero(t, v)

	key, value := uint32(0), uint64(1)<<40
	attr := mapElem{fd: uint32(fd), key: unsafe.Pointer(&key), value: unsafe.Pointer(&value)}
	_, _, errno = unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_UPDATE_ELEM, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	require.Zero(t, errno)
	v, err = h.Read()
	require.NoError(t, err)
	require.Equal(t, value, v)

	_, err = mapHeartbeat{os.Stdin}.Read()
	require.ErrorContains(t, err, "read heartbeat")
}
