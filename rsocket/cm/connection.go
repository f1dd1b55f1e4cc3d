package cm

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// Conn is an established connection, made by a [Manager] or the kernel's. Any goroutine may call its methods; a loop
// must not call Disconnect.
type Conn interface {
	// QP returns the queue pair that the caller passed to Dial or Accept and still owns.
	QP() verbs.QP
	// Attr returns the attributes with which the queue pair was connected.
	Attr() verbs.QPAttr
	// PrivateData returns the peer's private data, the whole field padded with zeros: on the active side of the
	// acceptance, on the passive side of the request.
	PrivateData() []byte
	// LocalAddr returns our address.
	LocalAddr() netip.AddrPort
	// RemoteAddr returns the peer's address.
	RemoteAddr() netip.AddrPort
	// Done returns a channel that is closed when the connection is over. The queue pair is not changed: completions that
	// arrived before can still be polled, then Disconnect moves it to ERR.
	Done() <-chan struct{}
	// AfterDone makes f run in its own goroutine when the connection is over, for callers with too many connections to
	// have a goroutine wait for each.
	AfterDone(f func())
	// Err returns nil before Done, then ErrDisconnected if the peer ended the connection, ErrClosed if we did, or else
	// why it was lost: a *RejectError of a peer that does not know it, rdmacm.ErrDeviceRemoved from the kernel.
	Err() error
	// Disconnect moves the queue pair to ERR, tells the peer and waits for its answer. If ctx ends the wait, the peer is
	// still told; if it never answers, the error is ErrTimeout. In every case the connection is over. A repeated call, or
	// one after the peer's disconnection, sends nothing.
	Disconnect(ctx context.Context) error
}

// connection implements Conn.
type connection struct {
	m       *Manager
	x       *conn
	qp      QPParams
	attr    verbs.QPAttr
	private []byte
	local   netip.AddrPort
	remote  netip.AddrPort
}

var _ Conn = (*connection)(nil)

func (m *Manager) newConn(x *conn, p QPParams, attr verbs.QPAttr, private []byte) *connection {
	c := &connection{m: m, x: x, qp: p, attr: attr, private: private}
	c.local, c.remote = x.addrs()
	return c
}

// addrs returns the addresses of the connection, ours first.
func (x *conn) addrs() (local, remote netip.AddrPort) {
	local = x.addr.Source
	remote = netip.AddrPortFrom(x.addr.Destination, x.req.Service.Port())
	if !x.active {
		local, remote = remote, local
	}
	return local, remote
}

func (c *connection) QP() verbs.QP { return c.qp.QP }

func (c *connection) Attr() verbs.QPAttr { return c.attr }

func (c *connection) PrivateData() []byte { return c.private }

func (c *connection) LocalAddr() netip.AddrPort { return c.local }

func (c *connection) RemoteAddr() netip.AddrPort { return c.remote }

func (c *connection) Done() <-chan struct{} { return c.x.done }

func (c *connection) AfterDone(f func()) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.x.err != nil {
		go f()
		return
	}
	c.x.after = append(c.x.after, f)
}

func (c *connection) Err() error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	return c.x.err
}

// Disconnect implements Conn. The peer is told up to Config.Retries times.
func (c *connection) Disconnect(ctx context.Context) error {
	failed := c.qp.Fail()
	c.m.act(func(now time.Time) { c.x.disconnect(now, ErrClosed) })
	if err := c.m.wait(ctx, c.x.changed, func() bool { return c.m.closed || c.x.state >= stateTimeWait }); err != nil {
		return fmt.Errorf("disconnect: %w", err)
	}
	c.m.mu.Lock()
	timedOut := c.x.timedOut
	c.m.mu.Unlock()
	if timedOut {
		return fmt.Errorf("disconnect: %w", ErrTimeout)
	}
	if failed != nil {
		return fmt.Errorf("disconnect: %w", failed)
	}
	return nil
}
