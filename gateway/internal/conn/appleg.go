package conn

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/legs"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/process"
)

// appLeg is the socket between the gateway and the local application. Until clean is called,
// closing it resets the application's connection: an unplanned end must not look like the end
// of the stream (docs/ARCHITECTURE.md "Legs").
//
// Once a flow owns the leg, its methods must be called on the thread of the flow's shard.
type appLeg struct {
	fd int // -1: closed
	v6 bool
}

// newAppLeg takes ownership of a connected, non-blocking TCP socket with reset-on-close
// enabled (SO_LINGER {1, 0}). It moves the descriptor above the floor if there is room. If
// there is none, the leg keeps its low descriptor, since the application is already
// connected.
func newAppLeg(fd int, t host.Tuple) *appLeg {
	if moved, err := process.AboveFloor(fd); err == nil {
		fd = moved
	}
	return &appLeg{fd: fd, v6: t.Local.Addr().Is6()}
}

// resetLeg resets an app leg that no connection wants.
func resetLeg(fd int) { newAppLeg(fd, host.Tuple{}).reset() }

// errLegClosed is returned when the flow has already ended.
var errLegClosed = fmt.Errorf("app leg: %w", net.ErrClosed)

// take returns the descriptor, which remains owned by the leg and is closed with it.
func (l *appLeg) take() (int, error) {
	if l.fd < 0 {
		return -1, errLegClosed
	}
	return l.fd, nil
}

// reset closes the leg so that the application sees a reset.
func (l *appLeg) reset() { l.finish(true) }

// clean closes the leg after both directions have ended; the kernel delivers what is left.
func (l *appLeg) clean() { l.finish(false) }

func (l *appLeg) finish(reset bool) {
	if l.fd < 0 {
		return
	}
	linger := unix.Linger{}
	if reset {
		// The kernel sends now what it has held back to fill a segment (tcp_autocorking). The
		// reset would drop it, while natively it arrives ahead of the reset.
		_ = unix.SetsockoptInt(l.fd, unix.SOL_TCP, unix.TCP_NODELAY, 1)
		linger.Onoff = 1
	}
	_ = unix.SetsockoptLinger(l.fd, unix.SOL_SOCKET, unix.SO_LINGER, &linger)
	_ = unix.Close(l.fd)
	l.fd = -1
}

// legDelivered reports whether the kernel has nothing left to deliver to the application: TCP
// is closed (or in TIME_WAIT). A descriptor that is not a TCP socket counts as delivered.
func legDelivered(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err != nil || info.State == tcpClose
}

// tcpClose is TCP_CLOSE from the kernel's tcp_states.h.
const tcpClose = 7

// approach makes the leg send with a hop limit that shows the sender to be nearby, which the
// application may check at any time.
func (l *appLeg) approach(look host.Look) {
	if fd, err := l.take(); err == nil {
		_ = legs.SetHops(fd, l.v6, int(look.Near())) // test stand-ins do not support it
	}
}
