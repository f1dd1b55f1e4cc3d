package wire

import "hash/crc32"

// foldMin is the number of bytes from which folding is faster than the hash package, which has one accumulator where
// fold has four.
const foldMin = 256

// Update returns the state after more bytes: payload and padding.
func Update(state uint32, b []byte) uint32 {
	if n := len(b) &^ 15; canFold && n >= foldMin {
		state = ^fold(^state, b[:n], &foldings)
		b = b[n:]
	}
	if len(b) == 0 {
		return state
	}
	return crc32.Update(state, crc32.IEEETable, b)
}

// UpdateAppend appends b to dst and returns the state after what it has appended: one pass over b does both, or another
// one over the copy. So both agree even if b changes meanwhile.
func UpdateAppend(dst []byte, state uint32, b []byte) ([]byte, uint32) {
	n := len(b)
	if !canFold || n == 0 || n%foldMin != 0 || cap(dst)-len(dst) < n {
		dst = append(dst, b...)
		return dst, Update(state, dst[len(dst)-n:])
	}
	to := dst[len(dst) : len(dst)+n]
	return dst[:len(dst)+n], ^foldCopy(^state, to, b, &foldings)
}

// folding holds the factors of fold. Bytes n bits before others count x^n times as much, so the CRC of both together is
// that of the first, times x^n, added to the second. The carry-less product of 64 by 32 bits is computed for either
// half of 16 bytes; the half in front is 64 bits further away, and reflected products lack a bit and 32 zeros (V. Gopal
// et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009).
//
// The assembly code depends on the offsets.
type folding struct {
	by2048, by1536, by1024, by512 [8]uint64 // for 64 bytes at once
	lanes                         [8]uint64 // the first three of four 16 bytes to the last
	by128                         [2]uint64
	barrett                       [2]uint64 // the polynomial, and x^64 divided by it
	by64                          uint64
}

var foldings = newFolding()

func newFolding() (f folding) {
	for i := 0; i < 8; i += 2 {
		f.by2048[i], f.by2048[i+1] = foldBy(2048)
		f.by1536[i], f.by1536[i+1] = foldBy(1536)
		f.by1024[i], f.by1024[i+1] = foldBy(1024)
		f.by512[i], f.by512[i+1] = foldBy(512)
		if i < 6 {
			f.lanes[i], f.lanes[i+1] = foldBy(384 - 64*i)
		}
	}
	f.by128[0], f.by128[1] = foldBy(128)
	f.barrett = [2]uint64{0x1db710641, 0x1f7011641}
	f.by64 = power(64)
	return f
}

// foldBy returns the factors for both halves of 16 bytes that are n bits in front.
func foldBy(n int) (low, high uint64) { return power(n + 32), power(n - 32) }

// power returns x^n, shifted for the bit that a reflected product lacks; n must be a multiple of 8.
func power(n int) uint64 {
	s := one
	for range n / 8 {
		s = step(s)
	}
	return uint64(s) << 1
}
