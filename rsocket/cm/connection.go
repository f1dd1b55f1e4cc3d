package cm

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// Conn is an established connection. Its methods may be called by any
// goroutine; Disconnect not by a loop.
type Conn struct {
	m       *Manager
	x       *conn
	qp      QPParams
	attr    verbs.QPAttr
	private []byte
	local   netip.AddrPort
	remote  netip.AddrPort
}

func (m *Manager) newConn(x *conn, p QPParams, attr verbs.QPAttr, private []byte) *Conn {
	c := &Conn{m: m, x: x, qp: p, attr: attr, private: private}
	c.local, c.remote = x.addrs()
	return c
}

// addrs are the addresses of the connection, ours first.
func (x *conn) addrs() (local, remote netip.AddrPort) {
	local = x.addr.Source
	remote = netip.AddrPortFrom(x.addr.Destination, x.req.Service.Port())
	if !x.active {
		local, remote = remote, local
	}
	return local, remote
}

// QP is the queue pair that the caller passed to Dial or Accept, and still owns.
func (c *Conn) QP() verbs.QP { return c.qp.QP }

// Attr are the attributes the queue pair was connected with.
func (c *Conn) Attr() verbs.QPAttr { return c.attr }

// PrivateData is what the peer said: the whole field of its message, padded
// with zeros, for the active side that of the acceptance, for the passive one
// that of the request.
func (c *Conn) PrivateData() []byte { return c.private }

// LocalAddr is our end.
func (c *Conn) LocalAddr() netip.AddrPort { return c.local }

// RemoteAddr is the peer's end.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// Done is closed when the connection is over. The queue pair is left as it is:
// what arrived before can still be polled, then Disconnect moves it to ERR.
func (c *Conn) Done() <-chan struct{} { return c.x.done }

// AfterDone has f called in a goroutine of its own when the connection is over,
// for a caller with too many connections to wait for each of them.
func (c *Conn) AfterDone(f func()) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.x.err != nil {
		go f()
		return
	}
	c.x.after = append(c.x.after, f)
}

// Err is nil before Done, then ErrDisconnected if the peer ended it, a
// *RejectError if the peer does not know the connection, else ErrClosed.
func (c *Conn) Err() error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	return c.x.err
}

// Disconnect moves the queue pair to ERR, tells the peer and waits for its
// answer. If ctx ends the waiting, the peer is still told, until Config.Retries;
// if the peer never answers, the error is ErrTimeout. Either way the connection
// is over. Again, or after the peer was first, it has nothing to say.
func (c *Conn) Disconnect(ctx context.Context) error {
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
