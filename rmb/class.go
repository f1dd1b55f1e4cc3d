package rmb

import "math/bits"

// Sizes of regions and slabs. Classes are powers of two. A slab is one memory region registered with the device and
// divided into regions of one class, so that thousands of connections share few registrations.
const (
	// MinRegion is the smallest region: it has room for a target list and control scratch space.
	MinRegion = 512
	// MaxRegion is the largest region.
	MaxRegion = 16 << 20

	minSlab        = 64 << 10
	maxSlab        = 1 << 20
	regionsPerSlab = 16
	classes        = 16 // 512 B … 16 MiB
)

// classOf returns the class of the smallest region with room for n bytes, or false if there is none.
func classOf(n int) (int, bool) {
	if n <= 0 || n > MaxRegion {
		return 0, false
	}
	return bits.Len(uint(max(n, MinRegion)-1)) - bits.Len(uint(MinRegion-1)), true
}

// classSize returns the size of a region of the class in bytes.
func classSize(class int) int { return MinRegion << class }

// slabSize returns the size of a slab of the class in bytes: 16 small regions, 4 of 256 KiB, or 1 of 1 MiB and more.
func slabSize(class int) int {
	size := classSize(class)
	return max(size, min(max(size*regionsPerSlab, minSlab), maxSlab))
}
