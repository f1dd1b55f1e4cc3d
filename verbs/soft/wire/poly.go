package wire

import "hash/crc32"

// The CRC register is a polynomial over GF(2) modulo that of Ethernet, with the coefficient of x^0 in its top bit. A
// zero byte multiplies it by x^8; a nonzero byte is first added to the low bits.

// one is the polynomial 1.
const one uint32 = 1 << 31

// step returns the register after a zero byte.
func step(s uint32) uint32 { return crc32.IEEETable[byte(s)] ^ s>>8 }

// stepBack is the inverse of step: the top byte identifies the table entry that was added, since no two entries have
// the same top byte.
func stepBack(s uint32) uint32 {
	for i, t := range crc32.IEEETable {
		if t>>24 == s>>24 {
			return (s^t)<<8 | uint32(i)
		}
	}
	panic("CRC table without inverse")
}

// multiply multiplies modulo the polynomial without a carry-less multiplication instruction: integers with one
// significant bit in four have products whose sums of at most eight terms do not reach the next significant bit.
func multiply(a, b uint32) uint32 {
	const m32, m64 = 0x11111111, 0x1111111111111111
	x, y := uint64(a), uint64(b)
	x0, x1, x2, x3 := x&m32, x&(m32<<1), x&(m32<<2), x&(m32<<3)
	y0, y1, y2, y3 := y&m32, y&(m32<<1), y&(m32<<2), y&(m32<<3)
	p := (x0*y0 ^ x1*y3 ^ x2*y2 ^ x3*y1) & m64
	p |= (x0*y1 ^ x1*y0 ^ x2*y3 ^ x3*y2) & (m64 << 1)
	p |= (x0*y2 ^ x1*y1 ^ x2*y0 ^ x3*y3) & (m64 << 2)
	p |= (x0*y3 ^ x1*y2 ^ x2*y1 ^ x3*y0) & (m64 << 3)
	// The coefficient of x^0 is in bit 62 now. The low half must be multiplied by x^32, which is four zero bytes.
	p <<= 1
	return step(step(step(step(uint32(p))))) ^ uint32(p>>32)
}
