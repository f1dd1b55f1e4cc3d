package rmb

import (
	"errors"
	"math"
	"slices"
)

// Errors of a ring. Both mean that a user of the ring has miscounted. The ring is unchanged.
var (
	ErrOverrun  = errors.New("ring overrun")
	ErrUnderrun = errors.New("ring underrun")
)

// MaxRing is the largest ring: counts fit the 29-bit lengths of rsocket immediates with room to spare.
const MaxRing = 1 << 28

// Ring is a byte ring over memory that it does not own. The producer fills the span that [Ring.WriteSpan] returns and
// calls [Ring.Produce]; the consumer empties [Ring.ReadSpan] and calls [Ring.Consume]. The producer may be a peer's
// RDMA write, in which case only Produce is called here. The zero Ring has no room. A Ring is not safe for concurrent
// use.
type Ring struct {
	buf []byte
	// head and tail are the cursors of produced and consumed. They are stored to save a division per operation.
	head, tail         Cursor
	produced, consumed uint64
}

// NewRing returns an empty ring over buf. Memory beyond [MaxRing] bytes is left unused.
func NewRing(buf []byte) Ring {
	if len(buf) > MaxRing {
		buf = buf[:MaxRing]
	}
	return Ring{buf: slices.Clip(buf)}
}

// NewRingAt returns an empty ring over buf whose first byte has the given absolute offset.
func NewRingAt(buf []byte, offset uint64) Ring {
	r := NewRing(buf)
	r.produced, r.consumed = offset, offset
	return r
}

// Size returns the number of bytes the ring can hold.
func (r *Ring) Size() int { return len(r.buf) }

// Len returns the number of bytes produced and not yet consumed.
func (r *Ring) Len() int { return int(r.produced - r.consumed) }

// Free returns the number of bytes that may be produced.
func (r *Ring) Free() int { return len(r.buf) - r.Len() }

// Produced returns the absolute offset of the end of the data.
func (r *Ring) Produced() uint64 { return r.produced }

// Consumed returns the absolute offset of the start of the data.
func (r *Ring) Consumed() uint64 { return r.consumed }

// Head returns the producer cursor.
func (r *Ring) Head() Cursor { return r.head }

// WriteSpan returns the contiguous memory where the next bytes go. It is empty when the ring is full, and shorter than
// Free where the ring wraps.
func (r *Ring) WriteSpan() []byte {
	return r.span(r.head, r.Free())
}

// ReadSpan returns the contiguous memory of the oldest bytes. It is empty when the ring is empty, and shorter than Len
// where the data wraps.
func (r *Ring) ReadSpan() []byte {
	return r.span(r.tail, r.Len())
}

// First returns the first n bytes of the memory, whatever they contain, or nil if the ring is smaller.
func (r *Ring) First(n int) []byte {
	if n < 0 || n > len(r.buf) {
		return nil
	}
	return r.buf[:n:n]
}

// span returns up to n contiguous bytes from the cursor. Its capacity ends there, too, so that an append cannot
// overwrite the bytes that follow.
func (r *Ring) span(c Cursor, n int) []byte {
	start := int(c.Count)
	end := start + min(n, len(r.buf)-start)
	return r.buf[start:end:end]
}

// Produce records that n bytes were added to the data. It returns [ErrOverrun] for more than [Ring.Free].
func (r *Ring) Produce(n int) error {
	if n < 0 || n > r.Free() {
		return ErrOverrun
	}
	if n > 0 {
		r.head = r.head.Add(uint32(len(r.buf)), uint32(n))
		r.produced += uint64(n)
	}
	return nil
}

// Consume records that the n oldest bytes are no longer needed. It returns [ErrUnderrun] for more than [Ring.Len].
func (r *Ring) Consume(n int) error {
	if n < 0 || n > r.Len() {
		return ErrUnderrun
	}
	if n > 0 {
		r.tail = r.tail.Add(uint32(len(r.buf)), uint32(n))
		r.consumed += uint64(n)
	}
	return nil
}

// ConsumeTo records that everything before the absolute offset is no longer needed. It returns [ErrUnderrun] for an
// offset outside the data.
func (r *Ring) ConsumeTo(offset uint64) error {
	if offset < r.consumed || offset-r.consumed > math.MaxInt32 {
		return ErrUnderrun
	}
	return r.Consume(int(offset - r.consumed))
}

// Cursor is a position in a ring as SMC-R's CDC messages carry it (RFC 7609 appendix A.4): how often the ring has
// wrapped, and the byte position within it. The wrap count distinguishes a full ring from an empty one.
type Cursor struct {
	// Wrap counts passes over the end of the ring and itself wraps at 16 bits.
	Wrap uint16
	// Count is the byte position, always less than the ring's size.
	Count uint32
}

// Add returns the cursor n bytes on (smc_curs_add). n must not exceed size: a cursor never passes its partner.
func (c Cursor) Add(size, n uint32) Cursor {
	// 64 bits, so that rings above 2 GiB cannot overflow the sum.
	sum := uint64(c.Count) + uint64(n)
	if sum >= uint64(size) {
		return Cursor{Wrap: c.Wrap + 1, Count: uint32(sum - uint64(size))}
	}
	return Cursor{Wrap: c.Wrap, Count: uint32(sum)}
}
