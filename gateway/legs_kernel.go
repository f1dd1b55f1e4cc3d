package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
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
	)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("gateway socket: %w", err)
	}
	return nil
}

// control adapts prepare to net.Dialer and net.ListenConfig.
func (k *kernelLegs) control(network, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) { err = k.prepare(int(fd), network == "tcp6") }); cerr != nil {
		return cerr
	}
	return err
}

// Dial implements Legs.
func (k *kernelLegs) Dial(ctx context.Context, t Tuple) (AppConn, error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(t.Remote), Control: k.control, KeepAlive: -1}
	d.SetMultipathTCP(false)
	network := "tcp4"
	if t.Local.Addr().Is6() {
		network = "tcp6"
	}
	c, err := d.DialContext(ctx, network, t.Local.String())
	if err != nil {
		return nil, fmt.Errorf("dial the application: %w", err)
	}
	return c.(*net.TCPConn), nil
}

// Listen implements Legs: one transparent listener per family, which the
// programs feed with the SYNs that are handed over.
func (k *kernelLegs) Listen(accept func(AppConn, Tuple)) (LegListener, error) {
	lc := net.ListenConfig{Control: k.control, KeepAlive: -1}
	lc.SetMultipathTCP(false)
	l := &kernelListener{accept: accept}
	fds := [2]int{-1, -1}
	for i, network := range []string{"tcp4", "tcp6"} {
		ln, err := lc.Listen(context.Background(), network, ":0")
		if err != nil {
			return nil, errors.Join(fmt.Errorf("gateway listener %s: %w", network, err), l.Close())
		}
		l.listeners = append(l.listeners, ln.(*net.TCPListener))
		if fds[i], err = listenerFD(l.listeners[i]); err != nil {
			return nil, errors.Join(fmt.Errorf("gateway listener %s: %w", network, err), l.Close())
		}
	}
	if err := k.register(fds[0], fds[1]); err != nil {
		return nil, errors.Join(fmt.Errorf("register listeners: %w", err), l.Close())
	}
	l.busy = make([]BusySince, len(l.listeners))
	for i := range l.listeners {
		l.loops.Add(1)
		go l.loop(i)
	}
	return l, nil
}

func listenerFD(l *net.TCPListener) (int, error) {
	rc, err := l.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	err = rc.Control(func(f uintptr) { fd = int(f) })
	return fd, err
}

// kernelListener accepts from both families.
type kernelListener struct {
	accept    func(AppConn, Tuple)
	listeners []*net.TCPListener
	busy      []BusySince
	closed    atomic.Bool
	loops     sync.WaitGroup
}

// acceptPause is how long a listener without descriptors or memory waits.
const acceptPause = 10 * time.Millisecond

func (l *kernelListener) loop(i int) {
	defer l.loops.Done()
	ln := l.listeners[i]
	for !l.closed.Load() {
		c, err := ln.AcceptTCP()
		switch {
		case err == nil:
			l.busy[i].Begin(time.Now())
			l.accept(c, legTuple(c))
			l.busy[i].End()
		case errors.Is(err, net.ErrClosed):
			return
		default: // out of descriptors or memory: the flow declines by its deadline
			time.Sleep(acceptPause)
		}
	}
}

// legTuple is the flow an accepted leg belongs to: the gateway's socket has the
// server's address, its peer is the application.
func legTuple(c *net.TCPConn) Tuple {
	return Tuple{Local: addrPortOf(c.RemoteAddr()), Remote: addrPortOf(c.LocalAddr())}
}

func addrPortOf(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}

// Late implements LegListener: the slowest loop counts.
func (l *kernelListener) Late(now time.Time) (late time.Duration) {
	for i := range l.busy {
		late = max(late, l.busy[i].Late(now))
	}
	return late
}

// Close implements LegListener.
func (l *kernelListener) Close() error {
	l.closed.Store(true)
	var errs []error
	for _, ln := range l.listeners {
		errs = append(errs, ln.Close())
	}
	l.loops.Wait()
	return errors.Join(errs...)
}
