package legs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Congestion is the congestion control of legs. Every kernel has it, and nothing is lost between two sockets of one
// host.
const Congestion = "reno"

// Farthest is the largest TTL, with which a packet from the adjacent host arrives if it was sent as routing daemons do
// (RFC 5082).
const Farthest = 255

// Family returns AF_INET6 or AF_INET.
func Family(v6 bool) int {
	if v6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// SetHops sets the TTL of the packets that a socket sends.
func SetHops(fd int, v6 bool, ttl int) error {
	level, option := unix.SOL_IP, unix.IP_TTL
	if v6 {
		level, option = unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS
	}
	if err := unix.SetsockoptInt(fd, level, option, ttl); err != nil {
		return fmt.Errorf("ttl: %w", err)
	}
	return nil
}

// socket returns a leg, or a listener for legs: a TCP socket (not MPTCP), non-blocking and close-on-exec, that may have
// any address, and whose close resets the connection until SO_LINGER is changed.
func socket(v6 bool) (int, error) {
	fd, err := unix.Socket(Family(v6), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return -1, fmt.Errorf("gateway socket: %w", err)
	}
	if err := prepare(fd, v6); err != nil {
		return -1, errors.Join(fmt.Errorf("gateway socket: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// prepare sets what every gateway socket needs before bind. Sockets that a listener accepts inherit all of it.
func prepare(fd int, v6 bool) error {
	set := func(level, opt int) error { return unix.SetsockoptInt(fd, level, opt, 1) }
	var errs []error
	if v6 {
		errs = append(errs, set(unix.SOL_IPV6, unix.IPV6_TRANSPARENT), set(unix.SOL_IPV6, unix.IPV6_V6ONLY))
	} else {
		errs = append(errs, set(unix.SOL_IP, unix.IP_TRANSPARENT))
	}
	errs = append(errs,
		set(unix.SOL_SOCKET, unix.SO_REUSEADDR),
		set(unix.SOL_SOCKET, unix.SO_OOBINLINE), // urgent bytes stay in the stream
		set(unix.IPPROTO_TCP, unix.TCP_NODELAY), // the application's own Nagle algorithm has already decided
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, Congestion),
	)
	return errors.Join(errs...)
}
