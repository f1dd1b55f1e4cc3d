package bench

import (
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
)

// ownCPU is the processor time of this process.
func ownCPU() uint64 {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return unknownCPU
	}
	return uint64(r.Utime.Nano() + r.Stime.Nano())
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
