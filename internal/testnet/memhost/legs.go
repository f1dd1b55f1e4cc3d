package memhost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway"
	"github.com/smcgw/smcgw/netstack"
)

// Dial implements gateway.Legs.
func (m *Model) Dial(ctx context.Context, t gateway.Tuple) (gateway.AppConn, error) {
	app, err := m.sockets.Dial(ctx, t.Remote, t.Local)
	if err != nil {
		return nil, fmt.Errorf("dial the application: %w", err)
	}
	return m.join(app, ebpf.Tuple(t))
}

// join gives an app leg the descriptor that the gateway works on.
func (m *Model) join(app *netstack.HostConn, t ebpf.Tuple) (gateway.AppConn, error) {
	gw, far, err := m.pairs.pair()
	if err != nil {
		app.Abort()
		return nil, err
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
		return nil, errors.Join(errClosed, gw.Close())
	}
	return gw, nil
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

// Listen implements gateway.Legs.
func (m *Model) Listen(accept func(gateway.AppConn, gateway.Tuple)) (gateway.LegListener, error) {
	all, err := m.sockets.ListenAll()
	if err != nil {
		return nil, fmt.Errorf("gateway listener: %w", err)
	}
	l := &legListener{m: m, all: all, accept: accept, queue: make(chan *netstack.HostConn), quit: make(chan struct{})}
	l.loops.Go(l.take)
	l.loops.Go(l.serve)
	return l, nil
}

// legListener accepts the connections whose SYN was handed over.
type legListener struct {
	m      *Model
	all    *netstack.HostListener
	accept func(gateway.AppConn, gateway.Tuple)
	queue  chan *netstack.HostConn
	quit   chan struct{}
	once   sync.Once
	busy   gateway.BusySince
	loops  sync.WaitGroup
}

// take moves connections from the listener, which cannot be waited for together
// with the end, to the queue, which can.
func (l *legListener) take() {
	for {
		c, err := l.all.AcceptHost()
		if err != nil {
			return
		}
		select {
		case l.queue <- c:
		case <-l.quit:
			c.Abort()
			return
		}
	}
}

func (l *legListener) serve() {
	for {
		select {
		case c := <-l.queue:
			l.busy.Begin(time.Now())
			l.accepted(c)
			l.busy.End()
		case <-l.quit:
			return
		}
	}
}

// accepted: the socket has the server's address, its peer is the application.
func (l *legListener) accepted(c *netstack.HostConn) {
	t := ebpf.Tuple{Local: addrOf(c.RemoteAddr()), Remote: addrOf(c.LocalAddr())}
	conn, err := l.m.join(c, t)
	if err != nil {
		l.m.cfg.Logger.Warn("app leg", "error", err)
		return
	}
	l.accept(conn, gateway.Tuple(t))
}

func addrOf(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }

// Late implements gateway.LegListener.
func (l *legListener) Late(now time.Time) time.Duration { return l.busy.Late(now) }

// Close implements gateway.LegListener.
func (l *legListener) Close() error {
	var err error
	l.once.Do(func() {
		close(l.quit)
		err = l.all.Close()
	})
	l.loops.Wait()
	return err
}
