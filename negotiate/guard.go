package negotiate

import (
	"encoding/binary"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// guardLen is how many bytes of a PROPOSAL the guard compares: up to the end of the nonce.
const guardLen = HeaderLen + clc.TLVHeaderLen + 2

type guardVerdict uint8

const (
	guardUndecided guardVerdict = iota // so far b could be the beginning of a PROPOSAL
	guardClear                         // b cannot become a PROPOSAL of this connection
	guardMatch                         // b begins a PROPOSAL of this connection
)

// guard compares the first bytes that a client has sent with the fixed beginning of the PROPOSAL of this connection:
// eyecatcher, type and nonce TLV. Version and length may have any value. It decides at the first byte that differs, so
// the bytes of a native client are hardly ever held.
func guard(b []byte, nonce uint16) guardVerdict {
	pattern := guardPattern(nonce)
	for i := 0; i < len(b) && i < guardLen; i++ {
		if i >= 5 && i < HeaderLen {
			continue
		}
		if b[i] != pattern[i] {
			return guardClear
		}
	}
	if len(b) < guardLen {
		return guardUndecided
	}
	return guardMatch
}

func guardPattern(nonce uint16) (p [guardLen]byte) {
	binary.BigEndian.PutUint32(p[0:], clc.Eyecatcher)
	p[4] = uint8(TypeProposal)
	binary.BigEndian.PutUint16(p[8:], clc.TLVNonce)
	binary.BigEndian.PutUint16(p[10:], 2)
	binary.BigEndian.PutUint16(p[12:], nonce)
	return p
}
