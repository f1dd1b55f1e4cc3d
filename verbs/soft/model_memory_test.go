package soft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// modelRegion is a memory region with a frame around the part that is used: no
// byte of the frame may ever change.
type modelRegion struct {
	verbs.MR
	want []byte // what the used part must be; nil if the model does not say
	all  []byte // with the frame
	size int
}

// modelFrame is the guard on either side.
const modelFrame = 256

const modelGuard = 0xa5

// newRegion registers size bytes, own memory or the device's. In the latter the
// frame belongs to the region, and a peer with its key may write it, but should
// not.
func newRegion(t simTB, pd verbs.PD, rng *rand.Rand, size int, access verbs.Access) *modelRegion {
	t.Helper()
	if rng.IntN(2) == 0 {
		return guardedRegion(t, pd, rng, size, access)
	}
	mr, err := pd.AllocMR(size+2*modelFrame, access)
	require.NoError(t, err)
	return frameRegion(t, &modelRegion{MR: mr, all: mr.Bytes(), size: size}, rng)
}

// guardedRegion is one whose frame no key covers.
func guardedRegion(t simTB, pd verbs.PD, rng *rand.Rand, size int, access verbs.Access) *modelRegion {
	t.Helper()
	all := make([]byte, size+2*modelFrame)
	mr, err := pd.RegMR(all[modelFrame:modelFrame+size], access)
	require.NoError(t, err)
	return frameRegion(t, &modelRegion{MR: mr, all: all, size: size}, rng)
}

func frameRegion(t simTB, r *modelRegion, rng *rand.Rand) *modelRegion {
	for i := range r.all {
		r.all[i] = modelGuard
	}
	fillRandom(rng, r.bytes())
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func fillRandom(rng *rand.Rand, b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		binary.NativeEndian.PutUint64(b, rng.Uint64())
	}
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}

// bytes is the part that is used.
func (r *modelRegion) bytes() []byte { return r.all[modelFrame : modelFrame+r.size] }

// addr is the address of an offset of the used part.
func (r *modelRegion) addr(off int) uint64 {
	if len(r.Bytes()) == len(r.all) {
		off += modelFrame
	}
	return r.Addr() + uint64(off)
}

// sge names a piece of the used part.
func (r *modelRegion) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: r.addr(off), Length: uint32(n), LKey: r.LKey()}
}

// requireSame compares memory and says where it differs.
func requireSame(t simTB, want, got []byte, what string, args ...any) {
	t.Helper()
	if bytes.Equal(want, got) {
		return
	}
	n := 0
	for n < min(len(want), len(got)) && want[n] == got[n] {
		n++
	}
	t.Fatalf("%s: %d bytes, want %d; they differ from byte %d on: %x, want %x",
		fmt.Sprintf(what, args...), len(got), len(want), n, got[n:min(n+16, len(got))], want[n:min(n+16, len(want))])
}

// checkFrame fails if anything was written outside of the used part.
func (r *modelRegion) checkFrame(t simTB) {
	t.Helper()
	frame := bytes.Repeat([]byte{modelGuard}, modelFrame)
	requireSame(t, frame, r.all[:modelFrame], "before the region")
	requireSame(t, frame, r.all[modelFrame+r.size:], "after the region")
}

// cut divides n bytes at off of a region into at most count pieces, some of
// which may be empty.
func (r *modelRegion) cut(rng *rand.Rand, off, n, count int) []verbs.SGE {
	list := make([]verbs.SGE, 0, count)
	for i := range count {
		k := n
		if i < count-1 {
			k = rng.IntN(n + 1)
		}
		list = append(list, r.sge(off, k))
		off, n = off+k, n-k
	}
	return list
}

// modelSlots hands out equal pieces of a region.
type modelSlots struct {
	*modelRegion
	each int
	free []int // offsets
}

func newSlots(r *modelRegion, each int) *modelSlots {
	s := &modelSlots{modelRegion: r, each: each}
	for off := 0; off+each <= r.size; off += each {
		s.free = append(s.free, off)
	}
	return s
}

func (s *modelSlots) take() (off int, ok bool) {
	if len(s.free) == 0 {
		return 0, false
	}
	off, s.free = s.free[0], s.free[1:]
	return off, true
}

func (s *modelSlots) give(off int) { s.free = append(s.free, off) }
