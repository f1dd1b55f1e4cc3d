package gateway

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// kernelLegs makes app legs of real sockets: transparent, bound to the app-side
// TUN so that the programs steer them, reset on close until they are told
// otherwise (docs/ARCHITECTURE.md "Gateway sockets").
type kernelLegs struct {
	device     string // the app-side TUN
	congestion string // pinned, so that the host's default does not decide
	register   func(v4, v6 int) error
}

// newKernelLegs returns legs bound to device; register is told the listeners.
func newKernelLegs(device string, register func(v4, v6 int) error) *kernelLegs {
	return &kernelLegs{device: device, congestion: "reno", register: register}
}

// socket makes a gateway socket; those that a listener accepts inherit all of it.
func (k *kernelLegs) socket(v6 bool) (int, error) {
	family := unix.AF_INET
	if v6 {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return -1, fmt.Errorf("gateway socket: %w", err)
	}
	if err := k.prepare(fd, v6); err != nil {
		return -1, errors.Join(fmt.Errorf("gateway socket: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// prepare sets what every gateway socket needs, before bind.
func (k *kernelLegs) prepare(fd int, v6 bool) error {
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
		set(unix.IPPROTO_TCP, unix.TCP_NODELAY), // the application's own Nagle has already decided
		unix.BindToDevice(fd, k.device),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, k.congestion),
		setHops(fd, v6, farthest), // the answer to a SYN comes from the next host, as far as anybody knows
	)
	return errors.Join(errs...)
}

// dialTimeout bounds a dial of the local application where the client's budget
// does not: a native client waits as long as its own kernel does.
const dialTimeout = 60 * time.Second

// Dial implements Legs.
func (k *kernelLegs) Dial(on Loop, t Tuple, like Look, done func(fd int, err error)) (cancel func()) {
	d := &kernelDial{on: on, fd: -1, done: done}
	if err := d.begin(k, t, like); err != nil {
		d.over()
		return on.After(0, func() { done(-1, fmt.Errorf("dial the application: %w", err)) })
	}
	d.stop = on.After(dialTimeout, func() { d.end(unix.ETIMEDOUT) })
	return d.over
}

// kernelDial is a connect that is under way; it belongs to its loop.
type kernelDial struct {
	on      Loop
	fd      int // -1: over
	watched bool
	stop    func() // the timer; nil: none
	done    func(fd int, err error)
}

func (d *kernelDial) begin(k *kernelLegs, t Tuple, like Look) (err error) {
	if d.fd, err = k.socket(t.Local.Addr().Is6()); err != nil {
		return err
	}
	if d.fd, err = aboveFloor(d.fd); err != nil {
		return err
	}
	if err := like.dress(d.fd, t.Local.Addr().Is6()); err != nil {
		return fmt.Errorf("dress: %w", err)
	}
	if err := unix.Bind(d.fd, sockaddr(t.Remote)); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	if err := unix.Connect(d.fd, sockaddr(t.Local)); err != nil && !errors.Is(err, unix.EINPROGRESS) && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("connect: %w", err)
	}
	if err := d.on.Watch(d.fd, d.event); err != nil {
		return err
	}
	d.watched = true
	return nil
}

// event is called when the socket is connected, or never will be.
func (d *kernelDial) event(uint32) {
	errno, err := unix.GetsockoptInt(d.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && errno == 0 {
		fd := d.release()
		d.done(fd, nil)
		return
	}
	if err == nil {
		err = unix.Errno(errno)
	}
	d.end(err)
}

// end reports a failure, unless the dial is over.
func (d *kernelDial) end(err error) {
	if d.fd >= 0 {
		d.over()
		d.done(-1, fmt.Errorf("dial the application: %w", err))
	}
}

// over gives the dial up.
func (d *kernelDial) over() {
	if d.fd >= 0 {
		_ = unix.Close(d.release())
	}
}

// release takes the socket out of the loop.
func (d *kernelDial) release() (fd int) {
	fd, d.fd = d.fd, -1
	if d.watched {
		d.on.Unwatch(fd)
	}
	if d.stop != nil {
		d.stop()
	}
	return fd
}

// Listen implements Legs: one transparent listener per family, which the
// programs feed with the SYNs that are handed over.
func (k *kernelLegs) Listen(on Loop, accept func(fd int, t Tuple)) (LegListener, error) {
	l := &kernelListener{on: on, accept: accept}
	for _, v6 := range []bool{false, true} {
		if err := l.open(k, v6); err != nil {
			return nil, errors.Join(fmt.Errorf("gateway listener: %w", err), l.Close())
		}
	}
	if err := k.register(l.fds[0], l.fds[1]); err != nil {
		return nil, errors.Join(fmt.Errorf("register listeners: %w", err), l.Close())
	}
	return l, nil
}

// kernelListener accepts from both families, on its loop.
type kernelListener struct {
	on     Loop
	accept func(fd int, t Tuple)
	fds    []int
	closed bool
}

func (l *kernelListener) open(k *kernelLegs, v6 bool) error {
	fd, err := k.socket(v6)
	if err != nil {
		return err
	}
	l.fds = append(l.fds, fd)
	anywhere := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	if v6 {
		anywhere = netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
	}
	if err := unix.Bind(fd, sockaddr(anywhere)); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	l.on.Call(func() { err = l.on.Watch(fd, func(uint32) { l.take(fd) }) })
	return err
}

// acceptPause is how long a listener rests when there are no descriptors or no
// memory for what it has; flows decline by their deadline.
const acceptPause = 10 * time.Millisecond

// take accepts what is there.
func (l *kernelListener) take(listener int) {
	for !l.closed {
		fd, peer, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch {
		case err == nil:
			l.accepted(fd, peer)
		case errors.Is(err, unix.EAGAIN):
			return
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
		default: // there is no other edge for those that wait already
			l.on.After(acceptPause, func() { l.take(listener) })
			return
		}
	}
}

// Arrived implements LegListener.
func (l *kernelListener) Arrived(then func()) {
	l.on.Post(func() {
		for _, fd := range l.fds {
			l.take(fd)
		}
		then()
	})
}

// accepted: the gateway's socket has the server's address, its peer is the
// application.
func (l *kernelListener) accepted(fd int, peer unix.Sockaddr) {
	own, err := unix.Getsockname(fd)
	if err != nil {
		_ = unix.Close(fd)
		return
	}
	l.accept(fd, Tuple{Local: addrPort(peer), Remote: addrPort(own)})
}

// Close implements LegListener.
func (l *kernelListener) Close() error {
	var errs []error
	l.on.Call(func() {
		l.closed = true
		for _, fd := range l.fds {
			l.on.Unwatch(fd)
			errs = append(errs, unix.Close(fd))
		}
		l.fds = nil
	})
	return errors.Join(errs...)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

func addrPort(s unix.Sockaddr) netip.AddrPort {
	switch s := s.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr).Unmap(), uint16(s.Port))
	default:
		return netip.AddrPort{}
	}
}
