package shared

import "golang.org/x/sys/unix"

// mostLingering bounds the sockets that are closed slowly at the same time.
const mostLingering = 64

var slow = make(chan struct{}, mostLingering)

// CloseSocket closes a duplicate of a program's socket, if the descriptor is not negative, and sets it to -1. It does not
// wait, whatever the program has asked for: if this is the last descriptor and bytes are left to send, close(2) takes as
// long as SO_LINGER says, so another goroutine does it. If too many do so already, the socket is closed as that of a
// process that exits: the bytes are sent all the same.
func CloseSocket(fd *int) {
	n := *fd
	if *fd = -1; n < 0 {
		return
	}
	if l, err := unix.GetsockoptLinger(n, unix.SOL_SOCKET, unix.SO_LINGER); err == nil && l.Onoff != 0 && l.Linger > 0 {
		select {
		case slow <- struct{}{}:
			go func() {
				_ = unix.Close(n)
				<-slow
			}()
			return
		default:
			_ = unix.SetsockoptLinger(n, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
		}
	}
	_ = unix.Close(n)
}
