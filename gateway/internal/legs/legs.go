package legs

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/legs"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/internal/sockaddr"
)

// Namespace is where the sockets are.
type Namespace = legs.Namespace

// Kernel makes app legs of real sockets, in a network namespace of their own
// (docs/ARCHITECTURE.md "Legs").
type Kernel struct {
	ns       *legs.Namespace
	v4, v6   *legPool
	register func(v4, v6 int) error
}

// New returns legs in a namespace; register is told the listeners.
func New(ns *legs.Namespace, register func(v4, v6 int) error) *Kernel {
	pool := func(v6 bool) *legPool {
		return &legPool{make: func(count int) ([]int, error) { return ns.Sockets(v6, count) }}
	}
	return &Kernel{ns: ns, v4: pool(false), v6: pool(true), register: register}
}

// Available implements host.Legs.
func (k *Kernel) Available() bool { return k.ns.Alive() }

// noted is how long a death of the keeper is told of.
const noted = 10 * time.Minute

// Note implements host.Legs.
func (k *Kernel) Note() string {
	deaths, last := k.ns.Deaths()
	if deaths == 0 || time.Since(last) > noted {
		return ""
	}
	return fmt.Sprintf("legs: the process smcgw-legs has ended, %d times since the start, at %s last, and its spare has taken its place",
		deaths, last.Format(time.RFC3339))
}

// Close ends what no flow has.
func (k *Kernel) Close() error { return errors.Join(k.v4.close(), k.v6.close()) }

// dialTimeout bounds a dial of the local application where the client's budget
// does not: a native client waits as long as its own kernel does.
const dialTimeout = 60 * time.Second

// Dial implements host.Legs.
func (k *Kernel) Dial(on host.Loop, t host.Tuple, like host.Look, done func(fd int, err error)) host.Dialling {
	d := &kernelDial{on: on, fd: -1, tuple: t, like: like, done: done}
	pool := k.v4
	if t.Local.Addr().Is6() {
		pool = k.v6
	}
	d.stop = on.After(dialTimeout, func() { d.end(unix.ETIMEDOUT) })
	pool.take(func(fd int, err error) { on.Post(func() { d.begin(fd, err) }) })
	return d
}

// The life of a dial.
type dialPhase uint8

const (
	dialWaits    dialPhase = iota // for a socket
	dialConnects                  // the socket does
	dialOver
)

// kernelDial is a connect that is under way; it belongs to its loop.
//
//	dialWaits ── socket ──► dialConnects ── result, timeout, cancel ──► dialOver
//	    └── no socket, timeout, cancel ────────────────────────────────────┘
type kernelDial struct {
	on      host.Loop
	tuple   host.Tuple
	like    host.Look
	phase   dialPhase
	fd      int // of dialConnects
	watched bool
	stop    func() // the timer
	done    func(fd int, err error)
}

// begin has got a socket, or none.
func (d *kernelDial) begin(fd int, err error) {
	if d.phase == dialOver {
		if err == nil {
			_ = unix.Close(fd)
		}
		return
	}
	if err == nil {
		d.fd, d.phase = fd, dialConnects
		err = d.connect()
	}
	if err != nil {
		d.end(err)
	}
}

func (d *kernelDial) connect() error {
	if err := d.like.Dress(d.fd, d.tuple.Local.Addr().Is6()); err != nil {
		return fmt.Errorf("dress: %w", err)
	}
	if err := unix.Bind(d.fd, sockaddr.Of(d.tuple.Remote)); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	if err := unix.Connect(d.fd, sockaddr.Of(d.tuple.Local)); err != nil && !errors.Is(err, unix.EINPROGRESS) && !errors.Is(err, unix.EINTR) {
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
	if err := sockaddr.Err(d.fd); err != nil {
		d.end(err)
		return
	}
	fd := d.release()
	d.done(fd, nil)
}

// end reports a failure, unless the dial is over.
func (d *kernelDial) end(err error) {
	if d.phase != dialOver {
		d.over()
		d.done(-1, fmt.Errorf("dial the application: %w", err))
	}
}

// Cancel implements host.Dialling.
func (d *kernelDial) Cancel() { d.over() }

// Recall implements host.Dialling. An application cannot accept before it has the socket's
// acknowledgement, which follows the answer to its SYN at once: one that has got no answer
// has acknowledged nothing, and a closed one does not.
func (d *kernelDial) Recall() bool {
	if d.phase == dialConnects {
		info, err := unix.GetsockoptTCPInfo(d.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil || info.State != unix.BPF_TCP_SYN_SENT {
			return false
		}
	}
	d.over()
	return true
}

// over gives the dial up.
func (d *kernelDial) over() {
	if fd := d.release(); fd >= 0 {
		_ = unix.Close(fd)
	}
}

// release takes the socket, if there is one, out of the loop.
func (d *kernelDial) release() (fd int) {
	d.phase = dialOver
	fd, d.fd = d.fd, -1
	if d.watched {
		d.watched = false
		d.on.Unwatch(fd)
	}
	d.stop()
	return fd
}

// Listen implements host.Legs: one transparent listener per family, which the
// programs feed with the SYNs that are handed over. A kernel without IPv6 has one.
func (k *Kernel) Listen(on host.Loop, accept func(fd int, t host.Tuple)) (host.LegListener, error) {
	l := &kernelListener{on: on, accept: accept}
	fds := [2]int{-1, -1}
	for i, v6 := range []bool{false, true} {
		fd, err := l.open(k, v6)
		if v6 && errors.Is(err, unix.EAFNOSUPPORT) {
			break
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("gateway listener: %w", err), l.Close())
		}
		fds[i] = fd
	}
	if err := k.register(fds[0], fds[1]); err != nil {
		return nil, errors.Join(fmt.Errorf("register listeners: %w", err), l.Close())
	}
	return l, nil
}

// kernelListener accepts from both families, on its loop.
type kernelListener struct {
	on     host.Loop
	accept func(fd int, t host.Tuple)
	fds    []int
	rests  bool // take is due again, after acceptPause
	closed bool
}

func (l *kernelListener) open(k *Kernel, v6 bool) (int, error) {
	fds, err := k.ns.Sockets(v6, 1)
	if err != nil {
		return -1, err
	}
	fd := fds[0]
	l.fds = append(l.fds, fd)
	// The answer to a SYN comes from the next host, as far as the gateway can know.
	if err := legs.SetHops(fd, v6, legs.Farthest); err != nil {
		return -1, err
	}
	// The programs find it by its slot. On an address that no client has its port is in the way of no dial.
	at := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if v6 {
		at = netip.IPv6Loopback()
	}
	if err := unix.Bind(fd, sockaddr.Of(netip.AddrPortFrom(at, 0))); err != nil {
		return -1, fmt.Errorf("bind: %w", err)
	}
	if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
		return -1, fmt.Errorf("listen: %w", err)
	}
	l.on.Call(func() { err = l.on.Watch(fd, func(uint32) { l.take(fd) }) })
	return fd, err
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
			l.rest()
			return
		}
	}
}

// takeAll accepts what either family has.
func (l *kernelListener) takeAll() {
	for _, fd := range l.fds {
		l.take(fd)
	}
}

// rest has takeAll run after acceptPause, once for all that wait by then.
func (l *kernelListener) rest() {
	if l.rests {
		return
	}
	l.rests = true
	l.on.After(acceptPause, func() {
		l.rests = false
		l.takeAll()
	})
}

// Arrived implements host.LegListener.
func (l *kernelListener) Arrived(then func()) {
	l.on.Post(func() {
		l.takeAll()
		then()
	})
}

// accepted: the gateway's socket has the server's address, its peer is the
// application.
func (l *kernelListener) accepted(fd int, peer unix.Sockaddr) {
	own, err := sockaddr.Local(fd)
	if err != nil {
		_ = unix.Close(fd)
		return
	}
	l.accept(fd, host.Tuple{Local: sockaddr.AddrPort(peer), Remote: own})
}

// Close implements host.LegListener.
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
