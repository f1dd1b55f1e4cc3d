package ebpf

import (
	"bufio"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the time on the programs' clock, that of bpf_ktime_get_ns: CLOCK_MONOTONIC without the offset of the time
// namespace. time.Now includes that offset; a heartbeat from the future would keep the gateway alive long after it has
// died.
func Now() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano() - int64(clockOffset()))
}

// clockOffset returns what our time namespace adds to CLOCK_MONOTONIC. It does not change once a process is in the
// namespace (time_namespaces(7)).
var clockOffset = sync.OnceValue(func() time.Duration {
	f, err := os.Open("/proc/self/timens_offsets")
	if err != nil {
		return 0 // a kernel without time namespaces
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var clock string
		var s, ns int64
		if n, _ := fmt.Sscan(lines.Text(), &clock, &s, &ns); n == 3 && clock == "monotonic" {
			return time.Duration(s)*time.Second + time.Duration(ns)
		}
	}
	return 0
})
