package socket

import (
	"net"
	"sync/atomic"
	"syscall"

	"github.com/smcgw/smcgw/rsocket"
)

const (
	// ringStep is how much a writer copies into the send ring before it is sent. It also bounds messages. Long messages
	// cost a device less: the soft device carries twice as much as with 64 KiB, for half of the CPU time.
	ringStep = 256 << 10
)

// writeHalf is the sending direction: the endpoint's send ring, which the writer fills without the token and the token
// holder empties. A byte's place in it is free again when the endpoint frees it.
type writeHalf struct {
	half
	conn *Conn
	ring *rsocket.SendRing
	step int // ringStep, or less if the ring is small

	sealed atomic.Bool // writing has ended: send the end after what was filled
	gone   atomic.Bool // the peer ended the connection

	placing   atomic.Bool // the writer is a WriteAt, which does not wait for the ring
	placeable atomic.Bool // the endpoint may have room for more of it; written by the token holder

	ended bool // SHUTDOWN or DISCONNECT was requested; only used by the token holder
}

// Ready implements vector.Waiter.
func (t *writeHalf) Ready() bool {
	if t.placing.Load() {
		return t.placeable.Load() || t.over()
	}
	return t.ring.Free() > 0 || t.over()
}

// roomy is Ready for a sleeping writer: waking it for every acknowledged message would cost more than the message.
func (t *writeHalf) roomy() bool {
	if !t.placing.Load() && t.ring.Free() < t.ring.Size()/4 {
		return t.over()
	}
	return t.Ready()
}

// over reports whether waiting must end for a reason other than room.
func (t *writeHalf) over() bool {
	return t.gone.Load() || t.shut.Load() || t.deadline.Expired() || t.conn.closed.Load() || t.conn.failure.Load() != nil
}

// err returns why nothing can be written, or nil.
func (t *writeHalf) err() error {
	c := t.conn
	switch {
	case c.closed.Load():
		return net.ErrClosed
	case t.deadline.Expired():
		return expired
	case t.shut.Load():
		return syscall.EPIPE
	case c.failure.Load() != nil:
		return c.Err()
	case t.gone.Load():
		return syscall.EPIPE
	}
	return nil
}

// send makes the token holder send what was filled.
func (t *writeHalf) send() {
	v := t.conn.vec
	v.Wants(&t.conn.node)
	v.Kick()
}

// Write implements net.Conn. It returns when all bytes are in the send ring.
func (c *Conn) Write(p []byte) (int, error) {
	c.tx.mu.Lock()
	n, err := c.tx.write(p)
	c.unlockWrite()
	return n, c.fault("write", err)
}

func (t *writeHalf) write(p []byte) (total int, err error) {
	for {
		if err := t.err(); err != nil {
			return total, err
		}
		if total == len(p) {
			return total, nil
		}
		n := t.put(p[total:])
		total += n
		if n > 0 && t.ring.Wanting() {
			t.send()
		}
		if total == len(p) {
			return total, nil
		}
		if n == 0 {
			t.conn.await(&t.half, t)
		}
	}
}

// put moves a prefix of p into the ring.
func (t *writeHalf) put(p []byte) (n int) {
	for n < len(p) && n < t.step {
		m := copy(t.ring.Span(), p[n:min(len(p), t.step)])
		if m == 0 {
			break
		}
		_ = t.ring.Produce(m) // no more than the span
		n += m
	}
	return n
}

// finishWrite handles the end of the direction, or leaves that to the writer.
func (c *Conn) finishWrite() {
	t := &c.tx
	if t.mu.TryLock() {
		c.unlockWrite()
	} // else the writer returns soon and does the rest
}

// CloseWrite ends writing after everything written: the peer reads io.EOF. It does not block. If a program of rdma-core
// shuts down both directions at the moment the end arrives there, it drops its own last data and DISCONNECT; reads here
// then end with ECONNRESET instead of io.EOF.
func (c *Conn) CloseWrite() error {
	if c.closed.Load() {
		return c.fault("close", net.ErrClosed)
	}
	c.tx.shut.Store(true)
	c.tx.rouse()
	c.finishWrite()
	return nil
}

// unlockWrite unlocks tx.mu, and handles an end of the direction that was requested meanwhile.
func (c *Conn) unlockWrite() {
	t := &c.tx
	over := func() bool { return (t.shut.Load() || c.closed.Load()) && !t.sealed.Load() }
	for {
		if over() {
			t.sealed.Store(true)
			t.send()
		}
		t.mu.Unlock()
		if !over() || !t.mu.TryLock() {
			break
		}
	}
}

// bind sets the send ring. The caller holds the token.
func (t *writeHalf) bind(e *rsocket.Endpoint) {
	t.ring = e.SendRing()
	t.step = max(1, min(ringStep, t.ring.Size()/4))
}
