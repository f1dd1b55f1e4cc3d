package quicapp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/net/quic"

	"github.com/smcgw/smcgw/lab/apps"
)

// order is what a client sends at the beginning of a stream: the seed of the bytes, and how many of them go in each
// direction.
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

// send sends one direction and its end.
func (o order) send(s *quic.Stream, down bool) error {
	if err := apps.Send(s, o.of(down), o.size, chunkLen, new(int64)); err != nil {
		return err
	}
	return s.CloseWrite()
}

// of returns the seed of one direction.
func (o order) of(down bool) uint64 {
	if down {
		return ^o.seed
	}
	return o.seed
}
