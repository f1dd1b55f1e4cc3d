package interop

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sync/errgroup"

	"github.com/smcgw/smcgw/rsocket/socket"
)

// rstreamPort is the port of rstream and riostream.
const rstreamPort = 7471

// rstreamSizes returns the sizes that the program uses with "-S all".
func rstreamSizes() []int {
	sizes := []int{64}
	for n := 128; n <= 1<<22; n *= 2 {
		sizes = append(sizes, n, n+n/2)
	}
	return sizes
}

// rstreamTest is a part of what the program does on a connection.
type rstreamTest struct{ size, count, iterations int }

// rstreamDefault returns what the program does without arguments, on the first connection and on the second
// (size_to_count in librdmacm/examples/common.c).
func rstreamDefault() (connections [2][]rstreamTest) {
	for _, t := range []struct{ size, n int }{{64, 100000}, {4096, 10000}, {1 << 16, 1000}, {1 << 20, 100}} {
		connections[0] = append(connections[0], rstreamTest{t.size, 1, t.n})
		connections[1] = append(connections[1], rstreamTest{t.size, t.n, 1})
	}
	return connections
}

// rstream is our end of the program's private protocol (librdmacm/examples/rstream.c): the client sends 16 bytes, the
// server answers with 16, and then they take turns, in each of which one side sends a number of transfers of one
// size. If told to verify, both sides send bytes that count up, beyond the end of a connection, and check what they
// receive.
type rstream struct {
	conn   *socket.Conn
	client bool
	// ahead sends without waiting for our turn, so that there is traffic in both directions at once. The program does
	// not notice.
	ahead bool

	sent, received byte // what comes next
}

// rstreamSync is the size of the first two messages.
const rstreamSync = 16

// play does one part. The connection has a deadline.
func (r *rstream) play(t rstreamTest) error {
	if r.ahead {
		n := rstreamSync + t.size*t.count*t.iterations
		var both errgroup.Group
		both.Go(func() error { return r.send(n, t.size) })
		both.Go(func() error { return r.receive(n) })
		return both.Wait()
	}
	if err := r.turn(rstreamSync, 1); err != nil {
		return err
	}
	for range t.iterations {
		if err := r.turn(t.size, t.count); err != nil {
			return err
		}
	}
	return nil
}

// turn is one turn of each side.
func (r *rstream) turn(size, count int) error {
	if !r.client {
		if err := r.receive(size * count); err != nil {
			return err
		}
	}
	if err := r.send(size*count, size); err != nil {
		return err
	}
	if r.client {
		return r.receive(size * count)
	}
	return nil
}

// counting are bytes that count up.
var counting = func() []byte {
	b := make([]byte, 1<<22+1<<21+256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}()

// send sends n bytes, size at a time.
func (r *rstream) send(n, size int) error {
	for n > 0 {
		part := counting[r.sent:][:min(n, size)]
		if _, err := r.conn.Write(part); err != nil {
			return fmt.Errorf("%d bytes to send: %w", n, err)
		}
		r.sent += byte(len(part))
		n -= len(part)
	}
	return nil
}

// receive expects n bytes, in whatever parts they arrive, and no more.
func (r *rstream) receive(n int) error {
	buf := make([]byte, min(n, 1<<17))
	for n > 0 {
		got, err := r.conn.Read(buf[:min(n, len(buf))])
		if !bytes.Equal(buf[:got], counting[r.received:][:got]) {
			return fmt.Errorf("%d bytes to receive: %x, not %x", n, buf[:min(got, 32)], counting[r.received:][:min(got, 32)])
		}
		r.received += byte(got)
		n -= got
		if err != nil && n > 0 {
			return fmt.Errorf("%d bytes to receive: %w", n, err)
		}
	}
	return nil
}

// end expects the program to close its side in order, and closes ours.
func (r *rstream) end() error {
	n, err := r.conn.Read(make([]byte, 1))
	if n != 0 || !errors.Is(err, io.EOF) {
		return fmt.Errorf("%d bytes after the last: %w", n, err)
	}
	return r.conn.Close()
}
