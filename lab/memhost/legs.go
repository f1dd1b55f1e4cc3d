package memhost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/host"
	"github.com/smcgw/smcgw/netstack"
)

// dialTimeout bounds a dial that is not cancelled.
const dialTimeout = time.Minute

// Dial implements host.Legs.
func (m *Model) Dial(on host.Loop, t host.Tuple, _ host.Look, done func(fd int, err error)) host.Dialling {
	ctx, stop := context.WithTimeout(context.Background(), dialTimeout)
	d := &dial{fd: -1, stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(d.ended)
		defer stop()
		d.fd, d.err = m.dial(ctx, t)
		on.Post(func() { d.tell(done) })
	}()
	return d
}

// dial is a connection to an application that is being made; when it is, it
// belongs to the loop.
type dial struct {
	fd   int // -1: none
	err  error
	over bool // told or cancelled

	stop  func()        // has it end
	ended chan struct{} // closed when it has
}

func (d *dial) tell(done func(fd int, err error)) {
	if !d.over {
		d.over = true
		done(d.fd, d.err)
	}
}

// Cancel implements host.Dialling: an application that was reached is reset before it returns.
func (d *dial) Cancel() {
	d.stop()
	<-d.ended
	if !d.over && d.fd >= 0 {
		_ = unix.Close(d.fd)
	}
	d.over = true
}

// Recall implements host.Dialling.
func (d *dial) Recall() bool {
	if d.over {
		return true
	}
	d.stop()
	<-d.ended
	if d.fd >= 0 {
		return false
	}
	d.over = true
	return true
}

func (m *Model) dial(ctx context.Context, t host.Tuple) (fd int, err error) {
	app, err := m.sockets.Dial(ctx, t.Remote, t.Local)
	if err != nil {
		return -1, fmt.Errorf("dial the application: %w", err)
	}
	return m.join(app, ebpf.Tuple(t))
}

// join gives an app leg the descriptor that the gateway works on.
func (m *Model) join(app *netstack.HostConn, t ebpf.Tuple) (fd int, err error) {
	fd, far, err := m.pairs.pair()
	if err != nil {
		app.Abort()
		return -1, err
	}
	b := newBridge(app, far)
	m.mu.Lock()
	closed := m.closed
	if !closed {
		m.legs[t] = b
	}
	m.mu.Unlock()
	b.start()
	if closed {
		b.abort()
		return -1, errors.Join(errClosed, unix.Close(fd))
	}
	return fd, nil
}

// legLives reports whether the app leg of a tuple still has something to
// deliver.
func (m *Model) legLives(t ebpf.Tuple) bool {
	b := m.legs[t]
	return b != nil && !b.ended()
}

// legLinger is how long the segments of a leg pass after its bridge has ended:
// its last ones may still be in a queue.
const legLinger = time.Second

func (m *Model) sweepLegs(now time.Duration) {
	for t, b := range m.legs {
		switch {
		case !b.ended():
		case b.sweptAt == 0:
			b.sweptAt = now
		case now-b.sweptAt > legLinger:
			delete(m.legs, t)
		}
	}
}

// endLegs ends the bridges: those whose gateway socket is closed get the time
// to deliver what they hold, the others are reset.
func (m *Model) endLegs() {
	m.mu.Lock()
	legs := make([]*bridge, 0, len(m.legs))
	for _, b := range m.legs {
		legs = append(legs, b)
	}
	m.mu.Unlock()
	end := time.NewTimer(legLinger)
	defer end.Stop()
	for _, b := range legs {
		select {
		case <-b.done:
		case <-end.C:
			end.Reset(0)
			b.abort()
			<-b.done
		}
	}
}

// killLegs resets every app leg, as a kernel does whose process is killed.
func (m *Model) killLegs() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.legs {
		b.abort()
	}
}

// Available implements host.Legs.
func (*Model) Available() bool { return true }

// Note implements host.Legs.
func (*Model) Note() string { return "" }

// Listen implements host.Legs.
func (m *Model) Listen(_ host.Loop, accept func(fd int, t host.Tuple)) (host.LegListener, error) {
	all, err := m.sockets.ListenAll()
	if err != nil {
		return nil, fmt.Errorf("gateway listener: %w", err)
	}
	l := &legListener{m: m, all: all, accept: accept}
	l.loop.Go(l.serve)
	return l, nil
}

// legListener accepts the connections whose SYN was handed over.
type legListener struct {
	m      *Model
	all    *netstack.HostListener
	accept func(fd int, t host.Tuple)
	loop   sync.WaitGroup
}

func (l *legListener) serve() {
	for {
		c, err := l.all.AcceptHost()
		if err != nil {
			return
		}
		l.accepted(c)
	}
}

// accepted: the socket has the server's address, its peer is the application.
func (l *legListener) accepted(c *netstack.HostConn) {
	t := ebpf.Tuple{Local: addrOf(c.RemoteAddr()), Remote: addrOf(c.LocalAddr())}
	fd, err := l.m.join(c, t)
	if err != nil {
		l.m.cfg.Logger.Warn("app leg", "error", err)
		return
	}
	l.accept(fd, host.Tuple(t))
}

func addrOf(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }

// Arrived implements host.LegListener: nothing waits here.
func (l *legListener) Arrived(then func()) { then() }

// Close implements host.LegListener.
func (l *legListener) Close() error {
	err := l.all.Close()
	l.loop.Wait()
	return err
}
