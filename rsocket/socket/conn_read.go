package socket

import (
	"io"
	"net"
	"sync/atomic"
)

// readHalf is the receiving direction. The reader copies from the ring without the token: the bytes between consumed
// and produced are its own.
type readHalf struct {
	half
	conn *Conn
	ring []byte

	produced atomic.Uint64 // bytes received; written by the holder of the token
	ended    atomic.Bool   // the peer sends no more; set after its last bytes were counted in produced
	due      atomic.Bool   // credits may be due once everything produced is consumed
	discard  atomic.Bool   // reading has ended: the token holder discards what arrives

	consumed atomic.Uint64 // bytes read; written by the reader
	pos      int           // index of consumed in the ring; only used by the reader
	told     uint64        // consumed when the token holder was last told; only used by the reader
}

// returnShare is the fraction of the ring after which the token holder is told about consumed bytes at the latest.
const returnShare = 16

// Ready implements vector.Waiter.
func (r *readHalf) Ready() bool {
	return r.produced.Load() != r.consumed.Load() || r.ended.Load() || r.shut.Load() || r.deadline.Expired() ||
		r.conn.closed.Load() || r.conn.failure.Load() != nil
}

// span waits for bytes and returns those that are contiguous. The caller holds mu.
func (r *readHalf) span() ([]byte, error) {
	for {
		// The order matters: load ended and the error before closed and produced. The peer's end may result from our own
		// Close, and ended is set only after the last bytes were counted.
		ended, err := r.ended.Load(), r.conn.Err()
		switch {
		case r.conn.closed.Load():
			return nil, net.ErrClosed
		case r.deadline.Expired():
			return nil, expired
		case r.shut.Load():
			return nil, io.EOF
		}
		if n := r.produced.Load() - r.consumed.Load(); n > 0 {
			end := min(r.pos+int(n), len(r.ring))
			return r.ring[r.pos:end:end], nil
		}
		switch {
		case ended:
			return nil, io.EOF
		case err != nil:
			return nil, err
		}
		r.conn.await(&r.half, r)
	}
}

// advance consumes n bytes, and tells the token holder when credits or grants may be due.
func (r *readHalf) advance(n int) {
	if r.pos += n; r.pos == len(r.ring) {
		r.pos = 0
	}
	consumed := r.consumed.Add(uint64(n))
	if r.due.Load() && consumed == r.produced.Load() || consumed-r.told >= uint64(len(r.ring)/returnShare) {
		r.told = consumed
		r.conn.vec.Wants(&r.conn.node)
		r.conn.vec.Kick()
	}
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		if c.closed.Load() {
			return 0, c.fault("read", net.ErrClosed)
		}
		return 0, nil
	}
	c.rx.mu.Lock()
	defer c.unlockRead()
	span, err := c.rx.span()
	if err != nil {
		return 0, c.fault("read", err)
	}
	return c.rx.take(p, span), nil
}

// take copies what span returned to p, and the bytes after the ring's wrap-around if there is room.
func (r *readHalf) take(p, span []byte) int {
	n := copy(p, span)
	r.advance(n)
	if n == len(span) && n < len(p) {
		if m := copy(p[n:], r.rest()); m > 0 {
			r.advance(m)
			n += m
		}
	}
	return n
}

// rest returns the contiguous bytes that are already there.
func (r *readHalf) rest() []byte {
	n := int(r.produced.Load() - r.consumed.Load())
	end := min(r.pos+n, len(r.ring))
	return r.ring[r.pos:end:end]
}

// CloseRead ends reading: reads return io.EOF, and data that still arrives is discarded. If writing has ended too, the
// peer is told.
func (c *Conn) CloseRead() error {
	if c.closed.Load() {
		return c.fault("close", net.ErrClosed)
	}
	c.rx.shut.Store(true)
	c.rx.rouse()
	if c.rx.mu.TryLock() {
		c.unlockRead()
	} // else the reader returns soon and does the rest
	return nil
}

// unlockRead unlocks rx.mu, and handles an end of the direction that was requested meanwhile.
func (c *Conn) unlockRead() {
	r := &c.rx
	over := func() bool { return (r.shut.Load() || c.closed.Load()) && !r.discard.Load() }
	for {
		if over() {
			r.discard.Store(true)
			c.vec.Wants(&c.node)
			c.vec.Kick()
		}
		r.mu.Unlock()
		if !over() || !r.mu.TryLock() {
			break
		}
	}
}
