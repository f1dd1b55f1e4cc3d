package apps

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// numbered is one datagram of a reproducible sequence. Its receiver can tell which one it is and check every byte, and
// so detects anything that no app has sent. It is
//
//	magic (4), size of the datagram (4), seed (8), number (8), stream
//
// big-endian. A datagram that is too short for that is a fixed pattern.
type numbered struct {
	seed, number uint64
	size         int
}

const (
	numberedMagic = "SMDG"
	numberedHead  = 24
	shortPattern  = 0xa5
)

func (d numbered) stream() stream { return stream{d.seed ^ (d.number+1)*0x9e3779b97f4a7c15} }

// append appends the datagram.
func (d numbered) append(b []byte) []byte {
	from := len(b)
	if d.size < numberedHead {
		for i := range d.size {
			b = append(b, shortPattern^byte(i))
		}
		return b
	}
	b = append(b, numberedMagic...)
	b = binary.BigEndian.AppendUint32(b, uint32(d.size))
	b = binary.BigEndian.AppendUint64(b, d.seed)
	b = binary.BigEndian.AppendUint64(b, d.number)
	b = append(b, make([]byte, d.size-numberedHead)...)
	d.stream().fill(b[from+numberedHead:], 0)
	return b
}

// errAlien means that a datagram was not sent by an app, or not in this form.
var errAlien = errors.New("no datagram of an app")

// parseNumbered checks a datagram up to its last byte. One without a number has seed and number 0.
func parseNumbered(b []byte) (numbered, error) {
	if len(b) < numberedHead {
		for i := range b {
			if b[i] != shortPattern^byte(i) {
				return numbered{}, fmt.Errorf("byte %d of %d: %w", i, len(b), errAlien)
			}
		}
		return numbered{size: len(b)}, nil
	}
	if !bytes.HasPrefix(b, []byte(numberedMagic)) {
		return numbered{}, fmt.Errorf("head of %d bytes: %w", len(b), errAlien)
	}
	d := numbered{
		size: int(binary.BigEndian.Uint32(b[4:])),
		seed: binary.BigEndian.Uint64(b[8:]), number: binary.BigEndian.Uint64(b[16:]),
	}
	if d.size != len(b) {
		return numbered{}, fmt.Errorf("%d bytes of %d: %w", len(b), d.size, errAlien)
	}
	if i := d.stream().check(b[numberedHead:], 0); i >= 0 {
		return numbered{}, fmt.Errorf("byte %d of %d: %w", numberedHead+i, len(b), errAlien)
	}
	return d, nil
}
