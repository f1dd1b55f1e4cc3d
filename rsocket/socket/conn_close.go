package socket

import "time"

// Close ends the connection. What was written before is still sent, by itself and for Linger at most, before the peer is
// told that the connection is over; the stack's Close waits for that. Close does not block, and is idempotent.
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

// finish takes the connection down; the stack waits for it.
func (c *Conn) finish() {
	c.linger()
	c.link.disconnect()
	_ = c.vec.Do(func() { _ = c.dropQP() })
	confirmed := c.link.wait()
	_ = c.free()
	c.leaveStack(confirmed)
}

// linger waits until the peer has everything, or nothing more can be done for it.
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

// free frees the memory. Operations that still use it end soon: the connection is closed.
func (c *Conn) free() error {
	for _, h := range []*half{&c.rx.half, &c.tx.half} {
		h.mu.Lock()
		defer h.mu.Unlock()
	}
	c.dom.keepMaps(c.maps)
	return c.ep.Release()
}

// leaveStack takes the connection out of the stack. Its queue pair can be used again if the peer has confirmed the end.
func (c *Conn) leaveStack(reuse bool) {
	s := c.stack
	s.mu.Lock()
	delete(s.conns, c)
	delete(s.byQP, c.qp)
	s.mu.Unlock()
	c.dom.giveBack(warmQP{qp: c.qp, vec: c.vec, size: c.size}, reuse)
	close(c.done)
	s.tasks.Done()
}
