package icmp

import (
	"encoding/binary"

	"github.com/smcgw/smcgw/netstack/internal/pathsize"

	"github.com/smcgw/smcgw/packet"
)

// HeaderLen is what is in front of the quoted packet.
const HeaderLen = 8

// Types and codes of the errors that are read.
const (
	Unreachable   = 3
	FragNeeded    = 4
	V6Unreachable = 1
	V6TooBig      = 2
)

// Error is what an ICMP error says.
type Error struct {
	Quoted  packet.IP // of a segment; the payload is what was quoted of it
	Segment packet.TCP
	MTU     int // 0: it is not about the size
}

// Read reads the error in b, the head of the packet p; false: it is not one, or about something else than a segment. The caller
// verifies the checksum.
func Read(p packet.IP, b []byte) (e Error, ok bool) {
	if len(b) < len(p.Header)+HeaderLen {
		return Error{}, false
	}
	b = b[len(p.Header):]
	if e.MTU, ok = mtu(p.V6(), b); !ok {
		return Error{}, false
	}
	q, err := packet.ParseQuoted(b[HeaderLen:])
	if err != nil || q.Proto != packet.ProtoTCP || q.V6() != p.V6() {
		return Error{}, false
	}
	e.Quoted, e.Segment = q, packet.TCP(q.Payload)
	return e, true
}

// mtu reads type and code: destination unreachable, or packet too big for a path of that MTU.
func mtu(v6 bool, b []byte) (mtu int, ok bool) {
	switch {
	case !v6 && b[0] == Unreachable && b[1] == FragNeeded:
		mtu = int(binary.BigEndian.Uint16(b[6:]))
		return mtu, mtu >= pathsize.Least4
	case v6 && b[0] == V6TooBig:
		mtu = int(min(binary.BigEndian.Uint32(b[4:]), 1<<16))
		return mtu, mtu >= pathsize.Least6
	case v6:
		return 0, b[0] == V6Unreachable
	default:
		return 0, b[0] == Unreachable
	}
}
