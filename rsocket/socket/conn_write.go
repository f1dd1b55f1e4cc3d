package socket

import (
	"net"
	"sync/atomic"
	"syscall"

	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/rsocket/internal/sendring"
)

const (
	// directBytes is how much a writer puts into the peer's ring before it lets others have the token.
	directBytes = 256 << 10
	// stepBytes is how much a writer copies into the peer's memory before the peer is told: it starts on the first piece
	// while the next one is copied.
	stepBytes = 64 << 10
	// ringStep is the same for the send ring. Messages are at most that long, and long messages cost a device less: the
	// soft one carries twice as much as with 64 KiB, for half the time of the processor.
	ringStep = 256 << 10
	// spareBytes bounds the send ring where the peer's ring is mapped: what is large goes there at once.
	spareBytes = 256 << 10
)

// writeHalf is the sending direction: a ring that the writer fills without the token and the holder of the token empties.
// With a send buffer of the endpoint the ring is that buffer, and a byte's place in it is free again when the endpoint
// says so. Where the peer's ring is mapped, the holder copies from here, and a writer that gets the token while the ring
// is empty writes to the peer at once.
type writeHalf struct {
	half
	conn   *Conn
	ring   *sendring.Ring
	mapped bool
	step   int           // stepBytes or ringStep
	spare  sendring.Ring // the ring where the endpoint has none
	size   int           // of spare, which is made when it is needed

	direct   atomic.Bool   // the writer waits for the peer's ring, not for its own
	sealed   atomic.Bool   // writing has ended: the end can be sent after what was filled
	straight atomic.Uint64 // bytes that went past the ring; written by the writer

	wide atomic.Bool // mapped: the peer's ring has room, as far as is known; written by the holder of the token
	gone atomic.Bool // the peer ended the connection

	ended bool // SHUTDOWN or DISCONNECT was asked for; the holder's
}

// Ready implements vector.Waiter.
func (t *writeHalf) Ready() bool {
	if t.direct.Load() {
		return t.wide.Load() || t.over()
	}
	return t.ring.Free() > 0 || t.over()
}

// roomy is ready for a writer that sleeps: waking it for every message that has been acknowledged would cost more than
// the message.
func (t *writeHalf) roomy() bool {
	if !t.direct.Load() && t.ring.Free() < t.ring.Size()/4 {
		return t.over()
	}
	return t.Ready()
}

// over tells whether waiting has an end other than room.
func (t *writeHalf) over() bool {
	return t.gone.Load() || t.shut.Load() || t.deadline.Expired() || t.conn.closed.Load() || t.conn.failure.Load() != nil
}

// err is why nothing can be written.
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

// send has what was filled sent.
func (t *writeHalf) send() {
	v := t.conn.vec
	v.Wants(&t.conn.node)
	v.Kick()
}

// Write implements net.Conn. It returns when the bytes are in the send ring or at the peer.
func (c *Conn) Write(p []byte) (int, error) {
	c.lockWrite()
	n, err := c.tx.write(p)
	c.unlockWrite()
	return n, c.fault("write", err)
}

func (t *writeHalf) write(p []byte) (total int, err error) {
	t.direct.Store(false)
	for {
		if err := t.err(); err != nil {
			return total, err
		}
		if total == len(p) {
			return total, nil
		}
		n, sent := t.put(p[total:])
		total += n
		if n > 0 && !sent && t.ring.Wanting() {
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

// put moves a prefix of p to where it goes now, and tells whether it has been sent.
func (t *writeHalf) put(p []byte) (n int, sent bool) {
	if t.mapped && t.ring.Free() == t.ring.Size() {
		if n := t.conn.writeDirect(p); n > 0 {
			return n, true
		}
		if t.direct.Load() && len(p) > stepBytes {
			return 0, true // wait for the peer rather than copy twice
		}
		t.unfold()
		t.direct.Store(false) // what does not fit waits for this ring
	}
	for n < len(p) && n < t.step {
		m := copy(t.ring.Span(), p[n:min(len(p), t.step)])
		if m == 0 {
			break
		}
		_ = t.ring.Produce(m) // no more than the span
		n += m
	}
	return n, false
}

// finishWrite does what is to be done at the end of the direction, or leaves it to the writer.
func (c *Conn) finishWrite() {
	t := &c.tx
	if t.mu.TryLock() {
		c.unlockWrite()
	} // else the writer ends soon and does the rest
}

// WriteBuffers writes all of bufs, small ones together in one message, and consumes what was written.
func (c *Conn) WriteBuffers(bufs *net.Buffers) (total int64, err error) {
	c.lockWrite()
	defer c.unlockWrite()
	t := &c.tx
	t.unfold()
	unsent := 0
	for len(*bufs) > 0 {
		if err = t.err(); err != nil {
			break
		}
		n := copy(t.ring.Span(), (*bufs)[0])
		if n > 0 {
			_ = t.ring.Produce(n) // no more than the span
			total += int64(n)
			(*bufs)[0] = (*bufs)[0][n:]
			unsent += n
		}
		if len((*bufs)[0]) == 0 {
			(*bufs)[0] = nil
			*bufs = (*bufs)[1:]
			continue
		}
		if unsent >= t.step || n == 0 {
			t.send()
			unsent = 0
		}
		if n == 0 {
			t.direct.Store(false)
			c.await(&t.half, t)
		}
	}
	if unsent > 0 && t.ring.Wanting() {
		t.send()
	}
	return total, c.fault("write", err)
}

// CloseWrite ends writing after everything written: the peer reads io.EOF. It does not block. A program of rdma-core
// that shuts down both directions in the moment the end arrives there drops its own last data and DISCONNECT; reads here
// then end with ECONNRESET instead of io.EOF.
func (c *Conn) CloseWrite() error {
	if c.closed.Load() {
		return c.fault("close", net.ErrClosed)
	}
	if c.async.end() {
		return nil
	}
	c.tx.shut.Store(true)
	c.tx.rouse()
	c.finishWrite()
	return nil
}

// unlockWrite ends a write, and does what could not be done while it lasted.
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

// bind takes the ring into use; the token is held.
func (t *writeHalf) bind(e *rsocket.Endpoint, size int) {
	if t.mapped = e.Mapped(); !t.mapped {
		t.ring = e.SendRing()
		t.step = max(1, min(ringStep, t.ring.Size()/4))
		return
	}
	t.step = stepBytes
	t.ring, t.size = &t.spare, min(size, spareBytes)
	t.wide.Store(true)
}

// unfold makes the ring of a writer that cannot write to the peer at once.
func (t *writeHalf) unfold() {
	if t.mapped && t.spare.Size() == 0 {
		t.spare.Init(make([]byte, t.size))
	}
}
