package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

// Conn is an established connection. Any goroutine may call its methods; a loop must not call Disconnect.
type Conn struct {
	id      *identifier
	qp      cm.QPParams
	attr    verbs.QPAttr
	at      place
	private []byte

	told chan struct{} // closed when the peer has ended the connection or confirmed its end

	mu    sync.Mutex    // guards everything below
	done  chan struct{} // closed when err is set
	err   error
	after []func()
	ended bool // told is closed
}

func newConn(d *identifier, p cm.QPParams, attr verbs.QPAttr, at place, private []byte) *Conn {
	c := &Conn{id: d, qp: p, attr: attr, at: at, private: private, told: make(chan struct{}), done: make(chan struct{})}
	d.follow(c.event, c.lost)
	return c
}

// lost is called when the manager has ended.
func (c *Conn) lost(why error) {
	c.over(why)
	c.end()
}

// event handles an event of the kernel. An event that ends the connection is confirmed immediately, and the identifier
// destroyed.
func (c *Conn) event(ev event) {
	switch ev.Kind {
	case rdmacm.Disconnected:
		c.over(ev.failure())
		_ = c.id.do(disconnect{c.id.handle})
	case rdmacm.DeviceRemoval:
		c.over(ev.failure())
	default:
		return
	}
	c.end()
	c.id.destroy()
}

// over ends the use of the connection for a reason; the first reason is kept.
func (c *Conn) over(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = why
	close(c.done)
	for _, f := range c.after {
		go f()
	}
	c.after = nil
}

// end wakes those that wait for the peer's part of the end.
func (c *Conn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.ended = true
		close(c.told)
	}
}

// QP returns the queue pair that the caller passed to Dial or Accept and still owns.
func (c *Conn) QP() verbs.QP { return c.qp.QP }

// Attr returns the attributes with which the queue pair was connected.
func (c *Conn) Attr() verbs.QPAttr { return c.attr }

// PrivateData returns the peer's private data: the whole field of its message, padded with zeros.
func (c *Conn) PrivateData() []byte { return c.private }

// LocalAddr returns our address.
func (c *Conn) LocalAddr() netip.AddrPort { return c.at.local }

// RemoteAddr returns the peer's address.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.at.remote }

// Done returns a channel that is closed when the connection is over. The queue pair is not changed: completions that
// arrived before can still be polled, then Disconnect moves it to ERR.
func (c *Conn) Done() <-chan struct{} { return c.done }

// AfterDone makes f run in its own goroutine when the connection is over.
func (c *Conn) AfterDone(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		go f()
		return
	}
	c.after = append(c.after, f)
}

// Err returns nil before Done, then cm.ErrDisconnected if the peer ended the connection, rdmacm.ErrDeviceRemoved, or
// else cm.ErrClosed.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Disconnect moves the queue pair to ERR, tells the peer and waits for its answer. If ctx ends the wait, the kernel
// goes on telling the peer. In every case the connection is over. A repeated call, or one after the peer's
// disconnection, sends nothing.
func (c *Conn) Disconnect(ctx context.Context) error {
	failed := c.qp.Fail()
	c.over(cm.ErrClosed)
	if err := c.id.do(disconnect{c.id.handle}); err != nil {
		c.end() // there is nothing to wait for
		c.id.destroy()
	}
	select {
	case <-c.told:
	case <-ctx.Done():
		return fmt.Errorf("disconnect: %w", context.Cause(ctx))
	}
	if failed != nil {
		return fmt.Errorf("disconnect: %w", failed)
	}
	return nil
}
