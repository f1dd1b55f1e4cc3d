package rsocket

import (
	"encoding/binary"
	"math/bits"
)

// sgeSize is the size of an rs_sge in connection data and in target lists.
const sgeSize = 16

// SGE is rs_sge: a piece of registered memory. On the wire the key comes before the length. Its integers are big-endian
// in connection data, and in the byte order of the list's owner in a target list.
type SGE struct {
	Addr   uint64 // address for the owner's device
	Key    uint32 // remote key
	Length uint32 // in bytes; in entries for ConnData.TargetSGL
}

// overflows reports whether the piece wraps around the address space.
func (g SGE) overflows() bool { return g.Addr+uint64(g.Length) < g.Addr }

// nativeBigEndian reports whether this machine is big-endian.
func nativeBigEndian() bool { return binary.NativeEndian.Uint16([]byte{0, 1}) == 1 }

// grantBytes encodes a grant for the peer's target list. Entries are in the byte order of the list's owner, so the
// writer swaps bytes if its own order differs (rsocket.c RS_OPT_SWAP_SGL).
func grantBytes(g SGE, ownerBigEndian bool) (b [sgeSize]byte) {
	if !ownerBigEndian {
		g = g.swapped()
	}
	binary.BigEndian.PutUint64(b[0:], g.Addr)
	binary.BigEndian.PutUint32(b[8:], g.Key)
	binary.BigEndian.PutUint32(b[12:], g.Length)
	return b
}

// readGrant decodes one entry of our target list. It loads each field once, because the peer can write there at any
// time.
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
