package legs

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// A leg is wide when this much was read from it, no second of it below wideRate.
	wideAfter = 16 << 20
	wideRate  = 4 << 20
	// wideRoom is what a wide leg may hold, in bytes, where tcp_rmem allows twice as much:
	// the kernel counts its own memory beside them.
	wideRoom = 1 << 20
)

// Room is how much of what an application sends its leg may hold. The zero value is that
// of a new leg.
//
//	as a socket of the host begins ──  16 MiB, 4 MiB or more of them in each second ──► wide
//
// The kernel would widen a leg by itself, and take the burst that fills all buffers on the
// way for the pace of a reader that is slow. What is queued in a wide leg is one piece of
// memory, of up to half a MiB, which counts until all of it has been read: the application
// goes on in steps of that size, and TCP_USER_TIMEOUT counts the time of a step.
//
// Its methods are not safe for concurrent use.
type Room struct {
	began  time.Time // of this second
	recent int       // bytes in it
	bytes  int       // since a second that had too few
	wide   bool
}

// Read counts n bytes that were read from a leg in a turn that began at now.
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

// mostRoom is what the host allows a socket to hold, in bytes: half of what tcp_rmem says.
// SO_RCVBUFFORCE does not look.
var mostRoom = sync.OnceValue(func() int {
	text, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_rmem")
	var least, first, most int
	if _, err := fmt.Sscan(string(text), &least, &first, &most); err != nil {
		return wideRoom
	}
	return most / 2
})

// widen gives a leg more room. Without the privilege the host's limit bounds it
// (net.core.rmem_max); a leg that has no more room is slower.
func widen(fd, room int) {
	if has, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil || has >= 2*room {
		return
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, room)
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, room)
}
