package rsocket

import (
	"encoding/binary"
	"math/bits"
)

// sgeSize is the size of an rs_sge, in connection data and in a target list.
const sgeSize = 16

// SGE is rs_sge: a piece of registered memory. Note the order on the wire: the key comes before the length. In connection
// data its integers are big-endian, in a target list in the byte order of the list's owner.
type SGE struct {
	Addr   uint64 // as the owner's device names it
	Key    uint32 // remote key
	Length uint32 // bytes, but for ConnData.TargetSGL
}

// overflows reports whether the piece would run over the end of the address space.
func (g SGE) overflows() bool { return g.Addr+uint64(g.Length) < g.Addr }

// nativeBigEndian tells this machine's byte order.
func nativeBigEndian() bool { return binary.NativeEndian.Uint16([]byte{0, 1}) == 1 }

// grantBytes encodes a grant for the peer's target list: entries there are in the order of the list's owner, so the
// writer swaps when the owner is of the other kind (rsocket.c RS_OPT_SWAP_SGL).
func grantBytes(g SGE, ownerBigEndian bool) (b [sgeSize]byte) {
	if !ownerBigEndian {
		g = g.swapped()
	}
	binary.BigEndian.PutUint64(b[0:], g.Addr)
	binary.BigEndian.PutUint32(b[8:], g.Key)
	binary.BigEndian.PutUint32(b[12:], g.Length)
	return b
}

// readGrant decodes one entry of the own target list. Each field is loaded once: the peer can write there at any time.
func readGrant(b []byte, ownBigEndian bool) SGE {
	g := SGE{
		Addr:   binary.BigEndian.Uint64(b[0:]),
		Key:    binary.BigEndian.Uint32(b[8:]),
		Length: binary.BigEndian.Uint32(b[12:]),
	}
	if !ownBigEndian {
		g = g.swapped()
	}
	return g
}

func (g SGE) swapped() SGE {
	return SGE{Addr: bits.ReverseBytes64(g.Addr), Key: bits.ReverseBytes32(g.Key), Length: bits.ReverseBytes32(g.Length)}
}
