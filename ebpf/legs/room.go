package legs

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	// A leg is wide when this much was read from it within so long.
	wideAfter  = 16 << 20
	wideWithin = time.Second
	// wideRoom is what a wide leg may hold, in bytes; the window scale, which tcp_rmem
	// gives, bounds it, too.
	wideRoom = 1 << 20
)

// Room is how much of what an application sends its leg may hold. The zero value is that
// of a new leg.
//
//	as a socket of the host begins ──  16 MiB within a second ──► wide
//
// The kernel would widen a leg by itself, and take the burst that fills all buffers on the
// way for the pace of a reader that is slow. What is queued in a wide leg is one piece of
// memory, of up to half a MiB, which counts until all of it has been read: the application
// goes on in steps of that size, and TCP_USER_TIMEOUT counts the time of a step.
//
// Its methods are not safe for concurrent use.
type Room struct {
	began time.Time // of the bytes
	bytes int
	wide  bool
}

// Read counts n bytes that were read from a leg in a turn that began at now.
func (r *Room) Read(fd, n int, now time.Time) {
	if r.wide {
		return
	}
	if now.Sub(r.began) > wideWithin {
		r.began, r.bytes = now, 0
	}
	if r.bytes += n; r.bytes >= wideAfter {
		r.wide = true
		widen(fd)
	}
}

// widen gives a leg more room. Without the privilege the host's limit bounds it
// (net.core.rmem_max); a leg that has no more room is slower.
func widen(fd int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, wideRoom) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, wideRoom)
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, wideRoom)
}
