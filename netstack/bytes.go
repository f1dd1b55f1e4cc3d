package netstack

import (
	"time"

	"github.com/smcgw/smcgw/packet"
)

// Read reads what is there: at least one byte, io.EOF after the peer's FIN,
// ErrWouldBlock, or the error that ended the connection, which stays.
func (c *Conn) Read(p []byte) (int, error) {
	switch {
	case c.f.state() == legWhole:
		return c.whole.Read(p)
	case len(p) == 0:
		return 0, nil
	}
	return c.readMini(p)
}

// Write queues as much of p as the send buffer takes; ErrWouldBlock if that is
// nothing. p is copied.
func (c *Conn) Write(p []byte) (int, error) {
	switch {
	case c.f.state() == legWhole:
		return c.whole.Write(p)
	case len(p) == 0:
		return 0, nil
	}
	return c.writeMini(p)
}

// CloseWrite sends a FIN after what was written; reading goes on.
func (c *Conn) CloseWrite() error { return c.want((*stream).CloseWrite) }

// SetUserTimeout ends the connection with ETIMEDOUT when written bytes stay
// unacknowledged for d (RFC 5482); zero turns it off.
func (c *Conn) SetUserTimeout(d time.Duration) error {
	return c.want(func(s *stream) error { return s.SetUserTimeout(d) })
}

// Over reports whether the connection has ended: both directions in order, or by a
// reset. What came before can still be read.
func (c *Conn) Over() bool {
	l := c.f.state()
	return l >= legBroken || l.endpoint() && c.whole.over()
}

// Vitals returns signs of life: how many bytes were taken to be sent, and how
// many segments have come from the peer. Both only grow. It is safe for
// concurrent use.
func (c *Conn) Vitals() (written, heard uint64) {
	written, heard = c.took.Load(), c.heard.Load()
	if l := c.f.state(); (l.endpoint() || !l.alive()) && c.whole != nil {
		written, heard = written+c.whole.written.Load(), heard+c.whole.received()-c.whole.led
	}
	return written, heard
}

// Acknowledged reports whether the peer's TCP has acknowledged the first written bytes, as
// Vitals counts them; written is one of the last 2 GiB. It is safe for concurrent use.
func (c *Conn) Acknowledged(written uint64) bool {
	first := c.f.isn + 1
	if c.f.server {
		first = c.f.serve.proof.ISS + 1
	}
	return !packet.After(first+uint32(written), c.f.una.Load())
}
