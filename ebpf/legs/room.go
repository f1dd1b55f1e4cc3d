package legs

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// A leg becomes wide once wideAfter bytes were read from it, with no second below wideRate.
	wideAfter = 16 << 20
	wideRate  = 4 << 20
	// wideRoom is how many bytes a wide leg may hold, if tcp_rmem allows twice as many: the kernel also counts its own
	// overhead.
	wideRoom = 1 << 20
)

// Room decides how much a leg may hold of what its application sends. The zero value is that of a new leg.
//
//	as a socket of the host begins ──  16 MiB, 4 MiB or more of them in each second ──► wide
//
// The kernel's own auto-tuning would take the initial burst, which fills all buffers on the path, for the pace of the
// reader even if the reader is slow. What is queued in a wide leg is one block of memory of up to half a MiB, which
// counts until all of it has been read. So the application proceeds in steps of that size, and TCP_USER_TIMEOUT
// includes the time of a step.
//
// A Room is not safe for concurrent use.
type Room struct {
	began  time.Time // start of the current second
	recent int       // read in that second
	bytes  int       // read since the last second below wideRate
	wide   bool
}

// Read counts n bytes that were read from a leg in a turn that began at now, and widens the leg when it is due.
func (r *Room) Read(fd, n int, now time.Time) {
	if r.wide {
		return
	}
	if passed := now.Sub(r.began); passed > time.Second {
		if r.recent < wideRate || passed > 2*time.Second {
			r.bytes = 0
		}
		r.began, r.recent = now, 0
	}
	r.recent += n
	if r.bytes += n; r.bytes >= wideAfter && r.recent >= wideRate {
		r.wide = true
		widen(fd, min(wideRoom, mostRoom()))
	}
}

// mostRoom returns how many bytes the host allows a socket to hold: half of the maximum of tcp_rmem, which
// SO_RCVBUFFORCE ignores.
var mostRoom = sync.OnceValue(func() int {
	text, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_rmem")
	var least, first, most int
	if _, err := fmt.Sscan(string(text), &least, &first, &most); err != nil {
		return wideRoom
	}
	return most / 2
})

// widen enlarges a leg's buffer. Without the privilege the host's limit (net.core.rmem_max) bounds it; a leg that stays
// smaller is only slower.
func widen(fd, room int) {
	if has, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil || has >= 2*room {
		return
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, room)
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, room)
}
