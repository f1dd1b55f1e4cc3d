package rdmacm

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

const (
	ahSize     = 32  // struct ib_uverbs_ah_attr
	qpAttrSize = 144 // struct ib_uverbs_qp_attr
)

// qpAttrMask is the set of attributes that verbs has. The kernel's mask has more: alternate paths, path migration, and
// internal bits that leak out.
const qpAttrMask = verbs.QPAttrState | verbs.QPAttrAccess | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrQKey |
	verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrTimeout | verbs.QPAttrRetryCnt | verbs.QPAttrRNRRetry |
	verbs.QPAttrRQPSN | verbs.QPAttrMaxRDAtomic | verbs.QPAttrMinRNRTimer | verbs.QPAttrSQPSN |
	verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrDestQPN

// QPAttr is the answer to InitQPAttr: the attributes that move a queue pair to a state. Port and SGID index refer to
// the kernel's tables.
type QPAttr struct {
	verbs.QPAttr

	Mask   verbs.QPAttrMask
	Global bool // packets have a global header
}

// Parse parses the answer.
func (a *QPAttr) Parse(b []byte) error {
	if len(b) < qpAttrSize {
		return fmt.Errorf("queue pair attributes of %d bytes: %w", len(b), ErrMalformed)
	}
	word := func(i int) uint32 { return native.Uint32(b[4*i:]) }
	tail := b[40+2*ahSize+5*4:]
	*a = QPAttr{
		Mask: verbs.QPAttrMask(word(0)) & qpAttrMask,
		QPAttr: verbs.QPAttr{
			State: verbs.QPState(word(1)), PathMTU: verbs.MTU(word(3)), QKey: word(5), RQPSN: word(6) & 0xffffff, SQPSN: word(7) & 0xffffff,
			DestQPNum: word(8) & 0xffffff, Access: verbs.Access(word(9)),
			PKeyIndex: native.Uint16(tail), MaxRDAtomic: tail[6], MaxDestRDAtomic: tail[7], MinRNRTimer: tail[8],
			Port: tail[9], Timeout: tail[10], RetryCnt: tail[11], RNRRetry: tail[12],
		},
	}
	if word(1) > uint32(verbs.QPSErr) || a.Mask&verbs.QPAttrPathMTU != 0 && (word(3) > 0xff || a.PathMTU.Bytes() == 0) {
		return fmt.Errorf("queue pair attributes out of range: %w", ErrMalformed)
	}
	a.parseAH(b[40 : 40+ahSize])
	return nil
}

// parseAH parses the peer's address.
func (a *QPAttr) parseAH(b []byte) {
	a.Global = b[29] != 0
	a.AH = verbs.AHAttr{
		SL: b[26], SrcPathBits: b[27], DLID: native.Uint16(b[24:]), Port: b[30],
	}
	if a.Global {
		a.AH.DGID = verbs.GID(b[:16])
		a.AH.FlowLabel = native.Uint32(b[16:])
		a.AH.SGIDIndex, a.AH.HopLimit, a.AH.TrafficClass = b[20], b[21], b[22]
	}
}
