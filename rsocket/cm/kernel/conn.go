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

// conn implements cm.Conn.
type conn struct {
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

var _ cm.Conn = (*conn)(nil)

func newConn(d *identifier, p cm.QPParams, attr verbs.QPAttr, at place, private []byte) *conn {
	c := &conn{id: d, qp: p, attr: attr, at: at, private: private, told: make(chan struct{}), done: make(chan struct{})}
	d.follow(c.event, c.lost)
	return c
}

// lost is called when the manager has ended.
func (c *conn) lost(why error) {
	c.over(why)
	c.end()
}

// event handles an event of the kernel. An event that ends the connection is confirmed immediately, and the identifier
// destroyed.
func (c *conn) event(ev event) {
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
func (c *conn) over(why error) {
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
func (c *conn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.ended = true
		close(c.told)
	}
}

func (c *conn) QP() verbs.QP { return c.qp.QP }

func (c *conn) Attr() verbs.QPAttr { return c.attr }

func (c *conn) PrivateData() []byte { return c.private }

func (c *conn) LocalAddr() netip.AddrPort { return c.at.local }

func (c *conn) RemoteAddr() netip.AddrPort { return c.at.remote }

func (c *conn) Done() <-chan struct{} { return c.done }

func (c *conn) AfterDone(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		go f()
		return
	}
	c.after = append(c.after, f)
}

func (c *conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Disconnect implements cm.Conn. The kernel goes on telling the peer when ctx ends the wait.
func (c *conn) Disconnect(ctx context.Context) error {
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
