package scan

import (
	"errors"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// procmapQuery is struct procmap_query of linux/fs.h.
type procmapQuery struct {
	size, flags, address        uint64
	begin, end, vmaFlags        uint64
	pageSize, offset, inode     uint64
	major, minor                uint32
	nameSize, buildIDSize       uint32
	nameAddress, buildIDAddress uint64
}

const (
	procmapQueryCall = 0xc0686611 // PROCMAP_QUERY, from Linux 6.11 on
	// nextExecutable is PROCMAP_QUERY_COVERING_OR_NEXT_VMA and PROCMAP_QUERY_VMA_EXECUTABLE.
	nextExecutable = 0x10 | 0x04
)

// queryMaps returns the executable mappings of an open /proc/PID/maps, limit+1 at most. If a process has many other
// mappings this is much cheaper than reading the text. Nil: the kernel lacks the call, or a name is too long.
func queryMaps(f *os.File, limit int) []mapping {
	name := make([]byte, unix.PathMax)
	var at uint64
	var list []mapping
	for len(list) <= limit {
		q := procmapQuery{flags: nextExecutable, address: at, nameSize: uint32(len(name)), nameAddress: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(name))))}
		q.size = uint64(unsafe.Sizeof(q))
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), procmapQueryCall, uintptr(unsafe.Pointer(&q)))
		runtime.KeepAlive(name)
		if errors.Is(errno, unix.ENOENT) {
			return list
		}
		if errno != 0 {
			return nil
		}
		m := mapping{begin: q.begin, end: q.end, executable: true, offset: q.offset, device: unix.Mkdev(q.major, q.minor), inode: q.inode}
		if q.nameSize > 0 {
			m.path = unix.ByteSliceToString(name[:q.nameSize])
		}
		list = append(list, m)
		at = q.end
	}
	return list
}
