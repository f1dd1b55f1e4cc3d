package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ownCPU is the processor time of this process.
func ownCPU() uint64 {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return unknownCPU
	}
	return uint64(r.Utime.Nano() + r.Stime.Nano())
}

// userHZ is the unit of /proc/PID/stat on every architecture Go knows.
const userHZ = 100

// processCPU is the processor time of another process; unknownCPU where there is
// none, or none to be seen from here.
func processCPU(pid int) uint64 {
	if pid <= 0 {
		return unknownCPU
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return unknownCPU
	}
	return statCPU(b)
}

// statCPU reads utime and stime, the 14th and 15th field of proc(5). The second
// is a name in brackets that may hold anything.
func statCPU(stat []byte) uint64 {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return unknownCPU
	}
	fields := bytes.Fields(stat[i+1:])
	const utime = 14 - 3 // the third field is the first after the name
	if len(fields) < utime+2 {
		return unknownCPU
	}
	var ticks uint64
	for _, f := range fields[utime : utime+2] {
		n, err := strconv.ParseUint(string(f), 10, 48)
		if err != nil {
			return unknownCPU
		}
		ticks += n
	}
	return ticks * uint64(time.Second/userHZ)
}

// spent is the difference of two readings; false if one is not known.
func spent(before, after uint64) (uint64, bool) {
	if before == unknownCPU || after == unknownCPU || after < before {
		return 0, false
	}
	return after - before, true
}
