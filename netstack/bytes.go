package netstack

import (
	"time"

	"github.com/smcgw/smcgw/packet"
)

// Read reads what is available and returns at least one byte. Otherwise it returns io.EOF after the peer's FIN,
// ErrWouldBlock, or the error that ended the connection, which is permanent.
func (c *Conn) Read(p []byte) (int, error) {
	switch {
	case c.f.state() == legWhole:
		return c.whole.Read(p)
	case len(p) == 0:
		return 0, nil
	}
	return c.readMini(p)
}

// Write copies as much of p as the send buffer has room for. It returns ErrWouldBlock if that is nothing.
func (c *Conn) Write(p []byte) (int, error) {
	switch {
	case c.f.state() == legWhole:
		return c.whole.Write(p)
	case len(p) == 0:
		return 0, nil
	}
	return c.writeMini(p)
}

// CloseWrite sends a FIN behind what was written. Reading remains possible.
func (c *Conn) CloseWrite() error { return c.want((*stream).CloseWrite) }

// SetUserTimeout ends the connection with ETIMEDOUT when written bytes remain unacknowledged for d (RFC 5482). Zero
// turns it off.
func (c *Conn) SetUserTimeout(d time.Duration) error {
	return c.want(func(s *stream) error { return s.SetUserTimeout(d) })
}

// Over reports whether the connection has ended: in both directions in order, or by a reset. Bytes received before that
// can still be read.
func (c *Conn) Over() bool {
	l := c.f.state()
	return l >= legBroken || l.endpoint() && c.whole.over()
}

// Vitals returns signs of life: how many bytes Write has accepted, and how many segments have come from the peer. Both
// only increase. It is safe for concurrent use.
func (c *Conn) Vitals() (written, heard uint64) {
	written, heard = c.took.Load(), c.heard.Load()
	if l := c.f.state(); (l.endpoint() || !l.alive()) && c.whole != nil {
		written, heard = written+c.whole.written.Load(), heard+c.whole.received()-c.whole.led
	}
	return written, heard
}

// Acknowledged reports whether the peer's TCP has acknowledged the first written bytes, counted as by Vitals. written
// must be within the last 2 GiB. It is safe for concurrent use.
func (c *Conn) Acknowledged(written uint64) bool {
	first := c.f.isn + 1
	if c.f.server {
		first = c.f.serve.proof.ISS + 1
	}
	return !packet.After(first+uint32(written), c.f.una.Load())
}
