package rmb

// Cursor is a position in a ring as SMC-R's CDC messages carry it (RFC 7609 appendix A.4): how often the ring has
// wrapped, and the byte position within it. The wrap count distinguishes a full ring from an empty one.
type Cursor struct {
	// Wrap counts passes over the end of the ring and itself wraps at 16 bits.
	Wrap uint16
	// Count is the byte position, always less than the ring's size.
	Count uint32
}

// CursorAt returns the cursor of an absolute offset in a ring of size bytes. A size of zero yields the zero cursor.
func CursorAt(size uint32, offset uint64) Cursor {
	if size == 0 {
		return Cursor{}
	}
	return Cursor{Wrap: uint16(offset / uint64(size)), Count: uint32(offset % uint64(size))}
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

// Valid reports whether c can be a position in a ring of size bytes.
func (c Cursor) Valid(size uint32) bool { return c.Count < size }

// Diff returns the bytes from consumer to producer (smc_curs_diff). The second result is false when the pair is
// impossible, that is, when producer is behind consumer or more than size bytes ahead: cursors may come from a peer.
func Diff(size uint32, consumer, producer Cursor) (uint32, bool) {
	if !consumer.Valid(size) || !producer.Valid(size) {
		return 0, false
	}
	switch producer.Wrap - consumer.Wrap {
	case 0:
		return producer.Count - consumer.Count, producer.Count >= consumer.Count
	case 1:
		return size - consumer.Count + producer.Count, producer.Count <= consumer.Count
	default:
		return 0, false
	}
}
