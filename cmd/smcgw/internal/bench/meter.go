package bench

import (
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
)

// ownCPU is the processor time of this process, and of its programs that have ended.
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

// processCPU is the processor time of another process; unknownCPU where there is
// none, or none to be seen from here.
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

// spent is the difference of two readings; false if one is not known.
func spent(before, after uint64) (uint64, bool) {
	if before == unknownCPU || after == unknownCPU || after < before {
		return 0, false
	}
	return after - before, true
}
