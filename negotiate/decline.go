package negotiate

import "github.com/smcgw/smcgw/negotiate/internal/clc"

// Decline ends the negotiation: the connection is not carried.
type Decline struct {
	// Version is the sender's version. Receivers ignore it, so that peers without a common version can still decline.
	Version uint8
	// Reason is the sender's reason. It may be a number that this version does not know, but it is never zero.
	Reason Reason
}

const declineTLVs = clc.TLVSet(1 << 10)

// encodeDecline encodes d without a MAC.
func encodeDecline(d Decline) []byte {
	b := clc.AppendHeader(nil, TypeDecline, d.Version)
	b = clc.AppendTLV(b, clc.TLVReason, []byte{uint8(d.Reason)})
	return clc.EndMessage(b, 0)
}

// ParseDecline parses a DECLINE at the start of b and returns the number of bytes it consumed.
func ParseDecline(b []byte) (Decline, int, error) {
	h, tlvs, err := clc.Message(b, TypeDecline)
	if err != nil {
		return Decline{}, 0, err
	}
	d := Decline{Version: h.Version}
	seen, err := clc.WalkTLVs(tlvs, declineTLVs, d.set)
	if err != nil {
		return Decline{}, 0, err
	}
	if !seen.Has(clc.TLVReason) {
		return Decline{}, 0, clc.Missing(TypeDecline)
	}
	return d, h.Len, nil
}

func (d *Decline) set(_ uint16, v []byte) error { return clc.SetReason(&d.Reason, v) }
