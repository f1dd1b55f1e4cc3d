package wire

// PSNDiff returns the signed distance from b to a modulo 2^24: negative if a is before b. A PSN up to 2^23-1 ahead is
// after, all others are before (IBTA vol. 1, chapter 9).
func PSNDiff(a, b uint32) int32 { return int32((a-b)<<8) >> 8 }

// PSNAdd returns the PSN n packets after a, or before it if n is negative.
func PSNAdd(a uint32, n int) uint32 { return (a + uint32(n)) & mask24 }
