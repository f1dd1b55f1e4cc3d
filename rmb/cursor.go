package rmb

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
