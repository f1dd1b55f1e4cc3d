package socket

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/rsocket/cm"
)

// acceptTimeout bounds the time that a peer may take to confirm our acceptance.
const acceptTimeout = 30 * time.Second

// ListenConfig makes listeners. Stack must be set.
type ListenConfig struct {
	Stack *Stack
	// Backlog bounds the connections that wait for Accept; further ones are refused. 0: 128.
	Backlog int
	// Config configures the connections.
	Config ConnConfig
}

// Listener accepts connections on a port. It is a net.Listener.
type Listener struct {
	stack *Stack
	cfg   ConnConfig
	cm    cm.Listener
	ready chan *Conn // connections waiting for Accept
	slots chan struct{}
	life  context.Context
	end   context.CancelFunc
	tasks sync.WaitGroup
	once  sync.Once
}

var _ net.Listener = (*Listener)(nil)

// Listen accepts connections at an address of the device, or at all of them. Port 0 chooses one.
func (lc *ListenConfig) Listen(_ context.Context, local netip.AddrPort) (*Listener, error) {
	l, err := lc.listen(local)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "rsocket", Source: net.TCPAddrFromAddrPort(local), Err: err}
	}
	return l, nil
}

func (lc *ListenConfig) listen(local netip.AddrPort) (*Listener, error) {
	s := lc.Stack
	m, err := s.managed()
	if err != nil {
		return nil, err
	}
	backlog := lc.Backlog
	if backlog <= 0 {
		backlog = cm.DefaultBacklog
	}
	l := &Listener{stack: s, cfg: lc.Config, ready: make(chan *Conn, backlog), slots: make(chan struct{}, backlog)}
	if l.cm, err = m.Listen(local, cm.ListenConfig{Backlog: backlog}); err != nil {
		return nil, err
	}
	l.life, l.end = context.WithCancel(s.life)
	if err := s.own(l); err != nil {
		return nil, errors.Join(err, l.cm.Close())
	}
	l.tasks.Go(l.serve)
	return l, nil
}

// serve admits requests, each in its own goroutine, as many as there are slots.
func (l *Listener) serve() {
	defer l.end() // no connection comes without this goroutine
	for {
		r, err := l.cm.Accept(l.life)
		if err != nil {
			return
		}
		select {
		case l.slots <- struct{}{}:
			l.tasks.Go(func() { l.admit(r) })
		default:
			l.refuse(r, cm.RejectNoResources)
		}
	}
}

func (l *Listener) refuse(r *cm.Request, reason cm.RejectReason) {
	l.stack.counters.refused.Add(1)
	_ = r.Reject(reason, nil) // a peer that is gone needs no answer
}

// admit makes the connection of a request and queues it for Accept.
func (l *Listener) admit(r *cm.Request) {
	c, err := l.accept(r)
	if err != nil {
		<-l.slots
		return
	}
	l.stack.counters.accepted.Add(1)
	l.ready <- c // never blocks: the channel has room for each slot
}

func (l *Listener) accept(r *cm.Request) (*Conn, error) {
	peer, err := rsocket.ParseConnData(r.PrivateData)
	if r.Transport != cm.TransportRC {
		err = errTransport
	}
	if err != nil {
		l.refuse(r, cm.RejectConsumerDefined)
		return nil, err
	}
	c, err := l.stack.newConn(l.cfg)
	if err != nil {
		l.refuse(r, cm.RejectConsumerDefined)
		return nil, err
	}
	c.arrived = r.Established
	if err := c.joinPeer(peer); err != nil {
		l.refuse(r, cm.RejectConsumerDefined)
		return nil, errors.Join(err, c.discard())
	}
	ctx, cancel := context.WithTimeout(l.life, acceptTimeout)
	defer cancel()
	made, err := r.Accept(ctx, cm.AcceptParams{QPParams: c.params(), PrivateData: c.ep.ConnData().Append(nil)})
	if err != nil {
		l.stack.counters.refused.Add(1)
		return nil, errors.Join(err, c.discard())
	}
	if err := c.begin(made); err != nil {
		_ = disconnect(made)
		return nil, errors.Join(err, c.discard())
	}
	made.AfterDone(func() { c.lost(made.Err()) })
	return c, nil
}

// errTransport is a request for a transport other than a reliable connection.
var errTransport = errors.New("request for another transport")

// Accept waits for the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.AcceptConn(context.Background())
	if err != nil {
		return nil, err
	}
	return c, nil
}

// AcceptConn is Accept with a context.
func (l *Listener) AcceptConn(ctx context.Context) (*Conn, error) {
	var err error
	select {
	case <-l.life.Done():
		err = net.ErrClosed
	case <-ctx.Done():
		err = timely(context.Cause(ctx))
	case c := <-l.ready:
		<-l.slots
		return c, nil
	}
	return nil, &net.OpError{Op: "accept", Net: "rsocket", Addr: l.Addr(), Err: err}
}

// Addr returns the address listened on, with the port that was chosen.
func (l *Listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.cm.Addr()) }

// Close stops listening and closes connections that were not accepted.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.end()
		_ = l.cm.Close()
		l.tasks.Wait()
		for {
			select {
			case c := <-l.ready:
				_ = c.Close()
				continue
			default:
			}
			break
		}
		l.stack.disown(l)
	})
	return nil
}
