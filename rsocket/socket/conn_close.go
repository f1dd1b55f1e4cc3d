package socket

import (
	"context"
	"time"

	"github.com/smcgw/smcgw/rsocket/cm"
)

// Close ends the connection. It does not block and is idempotent. In the background, what was written before is still
// sent, for Linger at most, before the peer is told that the connection is over; the stack's Close waits for that.
func (c *Conn) Close() error {
	if !c.closed.CompareAndSwap(false, true) {
		return nil
	}
	for _, h := range []*half{&c.rx.half, &c.tx.half} {
		h.deadline.Stop()
		h.rouse()
	}
	if c.alive != nil {
		c.alive.Stop()
	}
	if c.rx.mu.TryLock() {
		c.unlockRead()
	}
	c.finishWrite()
	go c.finish()
	return nil
}

// finish tears the connection down; the stack waits for it.
func (c *Conn) finish() {
	c.linger()
	_ = disconnect(c.cm)
	_ = c.vec.Do(func() { _ = c.dropQP() })
	_ = c.free()
	c.leaveStack()
}

// disconnect tells the peer that the connection is over and waits for its answer, for closeTimeout at most.
func disconnect(made cm.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return made.Disconnect(ctx)
}

// linger waits until the peer has everything, the connection is lost, or Linger is over.
func (c *Conn) linger() {
	if c.cfg.Linger < 0 {
		return
	}
	t := time.NewTimer(c.cfg.Linger)
	defer t.Stop()
	c.vec.Wants(&c.node)
	c.vec.Kick()
	select {
	case <-c.settled:
	case <-t.C:
		c.stack.counters.lingered.Add(1)
	}
}

// free frees the memory. It waits for operations that still use it, which end soon because the connection is closed.
func (c *Conn) free() error {
	for _, h := range []*half{&c.rx.half, &c.tx.half} {
		h.mu.Lock()
		defer h.mu.Unlock()
	}
	c.dom.keepMaps(c.maps)
	return c.ep.Release()
}

// leaveStack removes the connection from the stack and closes its queue pair.
func (c *Conn) leaveStack() {
	s := c.stack
	s.mu.Lock()
	delete(s.conns, c)
	delete(s.byQP, c.qp)
	s.mu.Unlock()
	_ = c.vec.Do(func() { _ = c.qp.Close() })
	close(c.done)
	s.tasks.Done()
}
