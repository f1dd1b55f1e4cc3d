package rdmacm

import (
	"encoding/binary"
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

const (
	// AddrAnswerSize is the size of the addresses or GIDs of an identifier (struct rdma_ucm_query_addr_resp).
	AddrAnswerSize = 280

	pathSize = 72 // struct ib_path_rec_data
	// pathAnswerSize has room for the primary and an alternate path. The kernel fills an entry only if there are more
	// bytes after it.
	pathAnswerSize = 8 + 2*pathSize + 8
)

// Path is a path to a peer (IBTA vol. 1, 15.2.5.16, PathRecord). On Ethernet the LIDs are meaningless.
type Path struct {
	SGID, DGID     verbs.GID
	SLID, DLID     uint16
	PKey           uint16
	PKeyIndex      uint16 // index of PKey in our port's table
	SL             uint8
	MTU            verbs.MTU
	Rate           uint8 // coded as in IBTA vol. 1, 15.2.5.16
	FlowLabel      uint32
	HopLimit       uint8
	TrafficClass   uint8
	PacketLifetime uint8 // 4.096 µs << PacketLifetime
}

// Global reports whether packets need a global header because the path leaves the subnet.
func (p *Path) Global() bool { return p.HopLimit > 1 }

// The flags of a path in the answer to QueryPath (IB_PATH_*).
const (
	pathPrimary  = 1 << 1
	pathOutbound = 1 << 3
)

// parsePath parses the primary path of an answer to QueryPath. The others are alternates and reverse paths.
func parsePath(b []byte) (p Path, err error) {
	if len(b) < 8 {
		return p, fmt.Errorf("paths of %d bytes: %w", len(b), ErrMalformed)
	}
	count := int64(native.Uint32(b))
	for b = b[8:]; count > 0 && len(b) >= pathSize; count, b = count-1, b[pathSize:] {
		if flags := native.Uint32(b); flags&pathPrimary != 0 && flags&pathOutbound != 0 {
			return p, p.parse(b[8:])
		}
	}
	return p, fmt.Errorf("no primary path: %w", ErrMalformed)
}

// parse parses a path record in wire format.
func (p *Path) parse(b []byte) error {
	if len(b) < pathSize-8 {
		return fmt.Errorf("path record of %d bytes: %w", len(b), ErrMalformed)
	}
	word := binary.BigEndian.Uint32(b[44:])
	*p = Path{
		DGID: verbs.GID(b[8:24]), SGID: verbs.GID(b[24:40]),
		DLID: binary.BigEndian.Uint16(b[40:]), SLID: binary.BigEndian.Uint16(b[42:]),
		FlowLabel: word >> 8 & 0xfffff, HopLimit: uint8(word), TrafficClass: b[48],
		PKey: binary.BigEndian.Uint16(b[50:]), SL: b[53] & 0xf, MTU: verbs.MTU(b[54] & 0x3f), Rate: b[55] & 0x3f,
		PacketLifetime: b[56] & 0x3f,
	}
	if p.MTU.Bytes() == 0 {
		return fmt.Errorf("path mtu %d: %w", p.MTU, ErrMalformed)
	}
	return nil
}
