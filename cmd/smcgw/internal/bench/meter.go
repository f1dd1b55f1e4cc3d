package bench

import (
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
)

// ownCPU returns the CPU time of this process, and of its child processes that have ended.
func ownCPU() uint64 {
	var sum uint64
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var r unix.Rusage
		if err := unix.Getrusage(who, &r); err != nil {
			return unknownCPU
		}
		sum += uint64(r.Utime.Nano() + r.Stime.Nano())
	}
	return sum
}

// processCPU returns the CPU time of another process, or unknownCPU if there is none or it cannot be seen from here.
func processCPU(pid int) uint64 {
	if pid <= 0 {
		return unknownCPU
	}
	t, ok := procfs.StatOf(pid).CPU()
	if !ok {
		return unknownCPU
	}
	return uint64(t)
}

// spent returns the difference of two readings; false if one is unknown.
func spent(before, after uint64) (uint64, bool) {
	if before == unknownCPU || after == unknownCPU || after < before {
		return 0, false
	}
	return after - before, true
}
