package quicapp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"

	"golang.org/x/net/quic"
)

// order is what a client sends at the head of a stream: the seed of the bytes
// and how many of them go each way.
type order struct {
	seed uint64
	size int64
}

const (
	orderLen  = 16
	sizeLimit = 1 << 32
	chunkLen  = 32 << 10
)

var errTransfer = errors.New("bytes are not those that were sent")

func (o order) bytes() []byte {
	b := binary.BigEndian.AppendUint64(nil, o.seed)
	return binary.BigEndian.AppendUint64(b, uint64(o.size))
}

func parseOrder(b []byte) (order, error) {
	if len(b) != orderLen {
		return order{}, fmt.Errorf("order of %d bytes: %w", len(b), errTransfer)
	}
	o := order{seed: binary.BigEndian.Uint64(b), size: int64(binary.BigEndian.Uint64(b[8:]))}
	if o.size < 0 || o.size > sizeLimit {
		return order{}, fmt.Errorf("order for %d bytes: %w", o.size, errTransfer)
	}
	return o, nil
}

// source yields the bytes of one direction.
func (o order) source(down bool) io.Reader {
	var key [32]byte
	binary.BigEndian.PutUint64(key[:], o.seed)
	if down {
		key[31] = 1
	}
	return rand.NewChaCha8(key)
}

// send writes one direction and its end.
func (o order) send(s *quic.Stream, down bool) error {
	if _, err := io.CopyBuffer(struct{ io.Writer }{s}, io.LimitReader(o.source(down), o.size), make([]byte, chunkLen)); err != nil {
		return err
	}
	return s.CloseWrite()
}

// receive reads one direction to its end and checks every byte.
func (o order) receive(r io.Reader, down bool) error {
	got, want := make([]byte, chunkLen), make([]byte, chunkLen)
	source := o.source(down)
	for off := int64(0); off < o.size; {
		n := min(chunkLen, o.size-off)
		if _, err := io.ReadFull(r, got[:n]); err != nil {
			return fmt.Errorf("receive at %d of %d: %w", off, o.size, err)
		}
		_, _ = io.ReadFull(source, want[:n])
		if !bytes.Equal(got[:n], want[:n]) {
			return fmt.Errorf("from %d on: %w", off, errTransfer)
		}
		off += n
	}
	if n, err := r.Read(got[:1]); n > 0 || !errors.Is(err, io.EOF) {
		return fmt.Errorf("after %d bytes: %d, %w", o.size, n, errors.Join(errTransfer, err))
	}
	return nil
}
