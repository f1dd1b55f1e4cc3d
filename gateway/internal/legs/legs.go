package legs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/legs"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/internal/sockaddr"
)

// Namespace is the network namespace of the sockets.
type Namespace = legs.Namespace

// Kernel makes app legs of kernel sockets, in a network namespace of their own (docs/ARCHITECTURE.md "Legs").
type Kernel struct {
	ns       *legs.Namespace
	v4, v6   *legPool
	register func(v4, v6 int) error
}

// New returns legs in a namespace. Listen calls register with its listeners; -1 stands for none.
func New(ns *legs.Namespace, register func(v4, v6 int) error) *Kernel {
	pool := func(v6 bool) *legPool {
		return &legPool{make: func(count int) ([]int, error) { return ns.Sockets(v6, count) }}
	}
	return &Kernel{ns: ns, v4: pool(false), v6: pool(true), register: register}
}

// Available implements host.Legs.
func (k *Kernel) Available() bool { return k.ns.Alive() }

// noted is how long the death of a keeper is reported.
const noted = 10 * time.Minute

// Note implements host.Legs.
func (k *Kernel) Note() string {
	deaths, last := k.ns.Deaths()
	if deaths == 0 || time.Since(last) > noted {
		return ""
	}
	return deathNote(deaths, last)
}

func deathNote(deaths int, last time.Time) string {
	often := "once"
	if deaths > 1 {
		often = fmt.Sprintf("%d times", deaths)
	}
	return fmt.Sprintf("legs: the process smcgw-legs has ended, %s since the start, at %s last, and its spare has taken its place",
		often, last.Format(time.RFC3339))
}

// Close closes the sockets that no flow has.
func (k *Kernel) Close() error { return errors.Join(k.v4.close(), k.v6.close()) }

// dialTimeout bounds a dial of the local application if the client's deadline does not: a native client waits as long
// as its own kernel does.
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

// dialPhase is the state of a dial.
type dialPhase uint8

const (
	dialWaits    dialPhase = iota // for a socket
	dialConnects                  // the socket connects
	dialOver
)

// kernelDial is a dial in progress. It belongs to its loop.
//
//	dialWaits ── socket ──► dialConnects ── result, timeout, cancel ──► dialOver
//	    └── no socket, timeout, cancel ────────────────────────────────────┘
type kernelDial struct {
	on      host.Loop
	tuple   host.Tuple
	like    host.Look
	phase   dialPhase
	fd      int // in dialConnects
	watched bool
	stop    func() // stops the timer
	done    func(fd int, err error)
}

// begin continues with a socket from the pool, or fails without one.
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

// end reports a failure, unless the dial has ended.
func (d *kernelDial) end(err error) {
	if d.phase != dialOver {
		d.over()
		d.done(-1, fmt.Errorf("dial the application: %w", err))
	}
}

// Cancel implements host.Dialling.
func (d *kernelDial) Cancel() { d.over() }

// Recall implements host.Dialling. An application cannot accept before it has the final ACK of the handshake, which the
// kernel sends as soon as the SYN-ACK arrives. A socket in SYN_SENT has sent none, and once closed it never will.
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

// over ends the dial and closes its socket.
func (d *kernelDial) over() {
	if fd := d.release(); fd >= 0 {
		_ = unix.Close(fd)
	}
}

// release removes the socket, if there is one, from the loop, and returns it.
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

// Listen implements host.Legs. It opens one transparent listener per family, to which the programs direct the SYNs that
// are handed over. On a kernel without IPv6 there is only one.
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

// kernelListener accepts connections of both families, on its loop.
type kernelListener struct {
	on     host.Loop
	accept func(fd int, t host.Tuple)
	fds    []int
	rests  bool // takeAll is due after acceptPause
	closed bool
}

func (l *kernelListener) open(k *Kernel, v6 bool) (int, error) {
	fds, err := k.ns.Sockets(v6, 1)
	if err != nil {
		return -1, err
	}
	fd := fds[0]
	l.fds = append(l.fds, fd)
	// As far as the gateway can know, the answer to a SYN comes from the next host.
	if err := legs.SetHops(fd, v6, legs.Farthest); err != nil {
		return -1, err
	}
	// The programs find the listener by its slot in their map. On a loopback address, which no client has, its port
	// cannot collide with a dial's.
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

// acceptPause is how long a listener rests when descriptors or memory run out. The flows that wait meanwhile decline at
// their deadlines.
const acceptPause = 10 * time.Millisecond

// take accepts the connections that wait at one listener.
func (l *kernelListener) take(listener int) {
	for !l.closed {
		fd, peer, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch {
		case err == nil:
			l.accepted(fd, peer)
		case errors.Is(err, unix.EAGAIN):
			return
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
		default: // epoll reports no other edge for those that already wait
			l.rest()
			return
		}
	}
}

// takeAll accepts the connections that wait at either listener.
func (l *kernelListener) takeAll() {
	for _, fd := range l.fds {
		l.take(fd)
	}
}

// rest schedules takeAll after acceptPause, once for all that wait by then.
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

// accepted passes on a connection. The gateway's socket has the server's address; its peer is the application.
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

// legLow is the number of ready sockets below which a pool is refilled.
const legLow = process.LegBatch / 2

// legPool keeps sockets of one family ready. Another process makes them, which a loop must not wait for. It is safe for
// concurrent use.
type legPool struct {
	make func(count int) ([]int, error)

	mu      sync.Mutex
	ready   []int
	waiting []func(fd int, err error) // bounded by the dials in progress
	filling bool
	closed  bool
}

// take calls use with a socket, which use then owns: immediately if one is ready, else in another goroutine once one
// has been made.
func (p *legPool) take(use func(fd int, err error)) {
	p.mu.Lock()
	fd := -1
	if n := len(p.ready); n > 0 {
		fd, p.ready = p.ready[n-1], p.ready[:n-1]
	} else if !p.closed {
		p.waiting = append(p.waiting, use)
	}
	if !p.closed && !p.filling && len(p.ready) < legLow {
		p.filling = true
		go p.fill()
	}
	closed := p.closed
	p.mu.Unlock()
	switch {
	case fd >= 0:
		use(fd, nil)
	case closed:
		use(-1, fmt.Errorf("sockets of legs: %w", net.ErrClosed))
	}
}

// fill makes sockets until no caller waits and enough are ready, or until making fails.
func (p *legPool) fill() {
	for more := true; more; {
		fds, err := p.make(process.LegBatch)
		if err == nil && len(fds) == 0 {
			err = errNoSocket
		}
		for i, fd := range fds {
			fds[i], _ = process.AboveFloor(fd) // on failure the low descriptor must do
		}
		var served []func(fd int, err error)
		served, more = p.deal(fds, err)
		for i, use := range served {
			if err != nil {
				use(-1, err)
				continue
			}
			use(fds[i], nil)
		}
	}
}

var errNoSocket = errors.New("no socket for a leg")

// deal assigns the first of the new sockets to the callers that wait, keeps the rest, and reports whether more are
// wanted. If err is not nil, all waiting callers are to be told it.
func (p *legPool) deal(fds []int, err error) (served []func(fd int, err error), more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.waiting)
	if err == nil {
		n = min(n, len(fds))
	}
	served, p.waiting = p.waiting[:n:n], p.waiting[n:]
	spare := fds[min(len(fds), n):]
	if p.closed {
		_ = closeFDs(spare)
	} else {
		p.ready = append(p.ready, spare...)
	}
	p.filling = err == nil && !p.closed && (len(p.waiting) > 0 || len(p.ready) < legLow)
	return served, p.filling
}

// close closes the ready sockets. Sockets made later are closed, too, unless a caller waits for them.
func (p *legPool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	err := closeFDs(p.ready)
	p.ready = nil
	return err
}

func closeFDs(fds []int) error {
	var errs []error
	for _, fd := range fds {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}
