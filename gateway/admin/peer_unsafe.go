package admin

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxPeerGroups bounds the groups queried; a peer with more is judged by its primary group
// alone.
const maxPeerGroups = 256

// peerGroups returns the supplementary groups of the peer (SO_PEERGROUPS, Linux 4.13), or
// none if the kernel does not tell. x/sys has no wrapper that returns binary data.
func peerGroups(fd int) []uint32 {
	var groups [maxPeerGroups]uint32
	size := uint32(unsafe.Sizeof(groups))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
		uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return nil
	}
	return append([]uint32(nil), groups[:size/uint32(unsafe.Sizeof(groups[0]))]...)
}
