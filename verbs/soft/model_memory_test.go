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
	off  int
	size int
}

// modelFrame is the guard on either side.
const modelFrame = 256

const modelGuard = 0xa5

// newRegion registers size bytes. Own memory and the device's take turns.
func newRegion(t simTB, pd verbs.PD, rng *rand.Rand, size int, access verbs.Access) *modelRegion {
	t.Helper()
	var mr verbs.MR
	var err error
	if total := size + 2*modelFrame; rng.IntN(2) == 0 {
		mr, err = pd.AllocMR(total, access)
	} else {
		mr, err = pd.RegMR(make([]byte, total), access)
	}
	require.NoError(t, err)
	r := &modelRegion{MR: mr, off: modelFrame, size: size}
	all := mr.Bytes()
	for i := range all {
		all[i] = modelGuard
	}
	fillRandom(rng, r.bytes())
	t.Cleanup(func() { require.NoError(t, mr.Close()) })
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
func (r *modelRegion) bytes() []byte { return r.Bytes()[r.off : r.off+r.size] }

// addr is the address of an offset of the used part.
func (r *modelRegion) addr(off int) uint64 { return r.Addr() + uint64(r.off+off) }

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
	all := r.Bytes()
	frame := bytes.Repeat([]byte{modelGuard}, modelFrame)
	requireSame(t, frame, all[:r.off], "before the region")
	requireSame(t, frame, all[r.off+r.size:], "behind the region")
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
