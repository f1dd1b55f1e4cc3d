package interop

import (
	"bytes"
	"fmt"
	"io"
	"time"

	"github.com/smcgw/smcgw/rsocket/socket"
)

// riostream is our end of the program's private protocol (librdmacm/examples/riostream.c): both sides map their
// memory at offset 0, exchange 16 bytes as rstream does, and then write to each other's memory in turns, the client
// first. A turn begins when the last byte has the value that the turn's number determines. The bytes before it count
// up as in rstream; only the last of a turn's transfers is checked.
type riostream struct {
	conn   *socket.Conn
	client bool

	sent, received byte // what comes next
}

// play does one part. The connection has a deadline.
func (r *riostream) play(t rstreamTest) error {
	m, err := r.conn.MapIO(t.size, 0)
	if err != nil {
		return err
	}
	mem := m.Bytes()
	mem[t.size-1] = 0xff // not the number of any early turn
	if err := r.sync(); err != nil {
		return err
	}
	turn := byte(0)
	for i := range t.iterations {
		if !r.client {
			err = r.await(mem, turn)
			turn++
		}
		if err == nil {
			err = r.write(t, turn)
			turn++
		}
		if r.client && err == nil {
			err = r.await(mem, turn)
			turn++
		}
		if err != nil {
			return fmt.Errorf("iteration %d: %w", i, err)
		}
	}
	return m.Close()
}

// sync exchanges the messages after which both sides know each other's memory.
func (r *riostream) sync() error {
	b := make([]byte, rstreamSync)
	steps := []func() error{
		func() error { _, err := io.ReadFull(r.conn, b); return err },
		func() error { _, err := r.conn.Write(b); return err },
	}
	if r.client {
		steps[0], steps[1] = steps[1], steps[0]
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("sync: %w", err)
		}
	}
	return nil
}

// write writes all transfers of a turn.
func (r *riostream) write(t rstreamTest, turn byte) error {
	junk := bytes.Repeat([]byte{0xaa}, t.size)
	junk[t.size-1] = turn - 1 // what the peer sent last
	last := append(bytes.Clone(counting[r.sent:][:t.size-1]), turn)
	r.sent += byte(t.size - 1)
	for i := range t.count {
		b := junk
		if i == t.count-1 {
			b = last
		}
		if n, err := r.conn.WriteAt(b, 0); n != t.size || err != nil {
			return fmt.Errorf("%d bytes of %d written: %w", n, t.size, err)
		}
	}
	return nil
}

// await waits for the end of the peer's turn and checks what it wrote. The last byte may arrive before others; see
// riostreamTries.
func (r *riostream) await(mem []byte, turn byte) error {
	end := len(mem) - 1
	deadline := time.Now().Add(time.Minute)
	for ; mem[end] != turn; time.Sleep(20 * time.Microsecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("last byte %d, not %d, of %d", mem[end], turn, len(mem))
		}
	}
	want := counting[r.received:][:end]
	for deadline = time.Now().Add(time.Second); ; time.Sleep(20 * time.Microsecond) {
		i := differ(mem[:end], want)
		if i < 0 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("byte %d of %d: %x, not %x", i, len(mem), mem[i:min(i+16, end)], want[i:min(i+16, end)])
		}
	}
	r.received += byte(end)
	return nil
}

// differ returns the first index at which two slices of equal length differ, or -1.
func differ(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}
