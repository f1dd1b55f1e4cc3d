package socket

import (
	"errors"
	"io"
	"slices"
)

// pieceSize is how much goes between a connection and a reader or writer of the program at a time: as much as a message
// has at most.
const pieceSize = ringStep

// piece holds what is between the two. The rings are no place for it: a reader or writer takes as long as it likes, and
// neither other operations nor the end of the connection wait for it.
type piece [pieceSize]byte

// What a reader or writer claims that cannot be.
var (
	errInvalidRead  = errors.New("invalid read result")
	errInvalidWrite = errors.New("invalid write result")
)

// ReadFrom sends everything that r has, each piece by a Write of its own. Of the piece whose Write fails the rest is lost, as
// with connections of package net.
func (c *Conn) ReadFrom(r io.Reader) (total int64, err error) {
	buf := c.stack.pieces.Get().(*piece)
	defer c.stack.pieces.Put(buf)
	for {
		if err := c.tx.err(); err != nil { // r keeps what cannot be sent
			return total, c.fault("write", err)
		}
		n, err := r.Read(buf[:])
		if n < 0 || n > len(buf) {
			return total, errInvalidRead
		}
		if n > 0 {
			sent, err := c.Write(buf[:n])
			if total += int64(sent); err != nil {
				return total, err
			}
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// WriteTo writes everything until the end of the stream to w. What w does not take is read next.
func (c *Conn) WriteTo(w io.Writer) (total int64, err error) {
	for {
		buf, n, err := c.readPiece()
		if err == io.EOF { //nolint:errorlint // data path; a wrapped one is no end of the stream
			return total, nil
		}
		if err != nil {
			return total, c.fault("read", err)
		}
		taken, err := w.Write(buf[:n])
		switch {
		case taken < 0 || taken > n:
			taken, err = 0, errInvalidWrite
		case taken < n && err == nil:
			err = io.ErrShortWrite
		}
		if total += int64(taken); taken < n {
			c.rx.putBack(slices.Clone(buf[taken:n]))
		}
		c.stack.pieces.Put(buf)
		if err != nil {
			return total, err
		}
	}
}

// readPiece is Read into a piece, which is taken when there is something to read: an idle connection has none.
func (c *Conn) readPiece() (buf *piece, n int, err error) {
	c.rx.mu.Lock()
	defer c.unlockRead()
	span, err := c.rx.span()
	if err != nil {
		return nil, 0, err
	}
	buf = c.stack.pieces.Get().(*piece)
	return buf, c.rx.take(buf[:], span), nil
}
