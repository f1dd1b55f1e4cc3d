package apps

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
)

// The transfer protocol: the client sends an order and then its stream; the server sends its own stream, its verdict on
// the client's, and if it has a name a [Server] as JSON. Each side half-closes when it has sent everything.

// order is the client's header.
type order struct {
	seed     uint64 // of the stream to the server; inverted, of the one to the client
	up, down int64  // stream bytes from and to the client
	// late makes the server wait for the client's FIN before it sends.
	late bool
	// write is the size of every write; 0 means random sizes up to 64 KiB.
	write int64
}

const (
	orderMagic  = "SMCGWtst"
	orderLen    = 48
	verdictLen  = 8
	serverLimit = 512
	verdictGood = ^uint64(0)
	randomWrite = 64 << 10
	writeLimit  = 1 << 28
)

func be64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

func (o order) bytes() []byte {
	b := append([]byte(nil), orderMagic...)
	b = binary.BigEndian.AppendUint64(b, o.seed)
	b = binary.BigEndian.AppendUint64(b, uint64(o.up))
	b = binary.BigEndian.AppendUint64(b, uint64(o.down))
	var late uint64
	if o.late {
		late = 1
	}
	b = binary.BigEndian.AppendUint64(b, late)
	return binary.BigEndian.AppendUint64(b, uint64(o.write))
}

var errOrder = errors.New("not a transfer order")

func parseOrder(b []byte) (order, error) {
	if len(b) < orderLen || !bytes.HasPrefix(b, []byte(orderMagic)) {
		return order{}, errOrder
	}
	field := func(i int) uint64 { return binary.BigEndian.Uint64(b[8*i:]) }
	o := order{
		seed: field(1), up: int64(field(2)), down: int64(field(3)),
		late: field(4) == 1, write: int64(field(5)),
	}
	if o.up < 0 || o.down < 0 || o.write < 0 || o.write > writeLimit {
		return order{}, errOrder
	}
	return o, nil
}

// send writes n bytes of the stream of a seed, and counts them. write is the size of every write, or 0 for random
// sizes.
func send(w io.Writer, seed uint64, n, write int64, sent *int64) error {
	s, rnd := stream{seed}, rand.New(rand.NewPCG(seed, 1))
	buf := make([]byte, max(write, randomWrite))
	for off := int64(0); off < n; {
		size := write
		if size == 0 {
			size = 1 + rnd.Int64N(randomWrite)
		}
		chunk := buf[:min(size, n-off)]
		s.fill(chunk, off)
		m, err := w.Write(chunk)
		off += int64(m)
		*sent += int64(m)
		if err != nil {
			return fmt.Errorf("send at %d of %d: %w", off, n, err)
		}
	}
	return nil
}

// wrongByteError says where a stream differs.
type wrongByteError struct{ off int64 }

// Error implements error.
func (e wrongByteError) Error() string { return fmt.Sprintf("wrong byte at offset %d", e.off) }

// receive reads exactly n bytes of a stream, in random sizes, and checks them.
func receive(r io.Reader, s stream, n int64, got *int64) error {
	rnd := rand.New(rand.NewPCG(s.seed, 2))
	buf := make([]byte, 256<<10)
	var wrong error
	for off := int64(0); off < n; {
		m, err := r.Read(buf[:min(1+rnd.Int64N(int64(len(buf))), n-off)])
		if i := s.check(buf[:m], off); i >= 0 && wrong == nil {
			wrong = wrongByteError{off + int64(i)}
		}
		off += int64(m)
		*got += int64(m)
		if errors.Is(err, io.EOF) && off < n {
			err = io.ErrUnexpectedEOF
		}
		if err != nil && off < n {
			return fmt.Errorf("receive at %d of %d: %w", off, n, err)
		}
	}
	return wrong
}

var errTrailing = errors.New("bytes after the end")

// expectEnd reads the FIN.
func expectEnd(r io.Reader) error {
	n, err := r.Read(make([]byte, 1))
	switch {
	case n > 0:
		return errTrailing
	case errors.Is(err, io.EOF):
		return nil
	default:
		return err
	}
}

// receiveAll reads the n bytes of the stream of a seed and its end. It checks and counts the bytes.
func receiveAll(r io.Reader, seed uint64, n int64, got *int64) error {
	if err := receive(r, stream{seed}, n, got); err != nil {
		return err
	}
	return expectEnd(r)
}

// Stream is a connection, or a stream of one, each direction of which has its own end.
type Stream interface {
	io.ReadWriter
	CloseWrite() error
}

// abort ends both directions of a connection. A stream of a connection ends with that.
func abort(c Stream) {
	if t, ok := c.(*net.TCPConn); ok {
		reset(t)
	}
}

func serveTransfer(c *net.TCPConn, e *Event) error { return ServeTransfer(c, e) }

// ServeTransfer is the server's side of one transfer, which it counts in e.
func ServeTransfer(c Stream, e *Event) error {
	head := make([]byte, orderLen)
	if _, err := io.ReadFull(c, head); err != nil {
		return err
	}
	o, err := parseOrder(head)
	if err != nil {
		return err
	}
	up := make(chan error, 1)
	go func() {
		up <- receiveAll(c, o.seed, o.up, &e.Received)
	}()
	var upErr error
	if o.late {
		upErr = <-up
	}
	downErr := send(c, ^o.seed, o.down, o.write, &e.Sent)
	if !o.late {
		if downErr != nil {
			abort(c) // also ends the receiver
		}
		upErr = <-up
	}
	if downErr != nil {
		return errors.Join(downErr, upErr)
	}
	return errors.Join(upErr, sendVerdict(c, upErr, e.Server))
}

func sendVerdict(c Stream, upErr error, self *Server) error {
	verdict := verdictGood
	if upErr != nil {
		verdict = 0
	}
	if wrong, ok := errors.AsType[wrongByteError](upErr); ok {
		verdict = uint64(wrong.off)
	}
	answer := be64(verdict)
	if self != nil {
		text, err := json.Marshal(self)
		if err != nil {
			return err
		}
		answer = append(answer, text...)
	}
	if _, err := c.Write(answer); err != nil {
		return err
	}
	return c.CloseWrite()
}

// Transfer is the client's side: it sends a number of bytes, and then gets as many back.
func Transfer(c Stream, seed uint64, size int64, e *Event) error {
	return clientTransfer(c, order{seed: seed, up: size, down: size, late: true}, e)
}

// clientTransfer runs the client's side on a connection.
func clientTransfer(c Stream, o order, e *Event) error {
	up := make(chan error, 1)
	go func() {
		_, err := c.Write(o.bytes())
		if err == nil {
			err = send(c, o.seed, o.up, o.write, &e.Sent)
		}
		if err == nil {
			err = c.CloseWrite()
		}
		up <- err
	}()
	err := receive(c, stream{^o.seed}, o.down, &e.Received)
	if err == nil {
		err = readVerdict(c, e)
	}
	if err != nil {
		abort(c) // also ends the sender
	}
	return errors.Join(err, <-up)
}

func readVerdict(c Stream, e *Event) error {
	b := make([]byte, verdictLen)
	if _, err := io.ReadFull(c, b); err != nil {
		return fmt.Errorf("verdict: %w", err)
	}
	if v := binary.BigEndian.Uint64(b); v != verdictGood {
		return fmt.Errorf("at the server: %w", wrongByteError{int64(v)})
	}
	text, err := io.ReadAll(io.LimitReader(c, serverLimit))
	switch {
	case err != nil:
		return err
	case len(text) == 0:
		return nil
	case json.Unmarshal(text, &e.Server) != nil:
		return errTrailing
	default:
		return expectEnd(c)
	}
}
