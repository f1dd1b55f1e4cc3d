package gateway

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
)

// mapHeartbeat is the heartbeat map of the programs: an array of one 64-bit
// time.
type mapHeartbeat struct{ f *os.File }

// Stop implements Heartbeat.
func (m mapHeartbeat) Stop() error { return ebpf.StopHeartbeat(m.f) }

// mapElem is the part of bpf_attr that BPF_MAP_LOOKUP_ELEM reads, for the 64-bit
// machines the gateway runs on.
type mapElem struct {
	fd    uint32
	_     uint32
	key   unsafe.Pointer
	value unsafe.Pointer
	flags uint64
}

// Read implements Heartbeat.
func (m mapHeartbeat) Read() (uint64, error) {
	var key uint32
	var value uint64
	attr := mapElem{fd: uint32(m.f.Fd()), key: unsafe.Pointer(&key), value: unsafe.Pointer(&value)}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_LOOKUP_ELEM, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return 0, fmt.Errorf("read heartbeat: %w", errno)
	}
	return value, nil
}
