package hw

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
)

// ErrMemlock comes with [verbs.ErrNoMemory] if the process may not lock more memory: every queue and every registered
// page counts.
var ErrMemlock = errors.New("RLIMIT_MEMLOCK is too small for the memory of adapters")

// memlockRoom is the room below the limit that rules the limit out as the cause.
const memlockRoom = 16 << 20

// memlock returns ErrMemlock with the limit, or nil if the limit is not why memory is refused.
func memlock() error {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r) != nil || r.Cur == unix.RLIM_INFINITY || r.Cur >= pinned()+memlockRoom {
		return nil
	}
	return fmt.Errorf("%w (it is %d KiB; see LimitMEMLOCK of systemd, ulimit -l)", ErrMemlock, r.Cur>>10)
}

// pinned returns how much memory of the process is pinned, in bytes.
func pinned() uint64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	n, _ := procfs.Bytes(string(b), "VmPin")
	return uint64(n)
}
