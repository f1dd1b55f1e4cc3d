package negotiate

import "fmt"

// Decline ends the negotiation: the connection is not carried.
type Decline struct {
	// Version of the sender; a receiver does not look at it, so that peers with no version in common can say so.
	Version uint8
	// Reason is the sender's; it may be a number this version does not know, never zero.
	Reason Reason
}

const declineTLVs = tlvSet(1 << 10)

// AppendDecline appends the message without a MAC.
func AppendDecline(b []byte, d Decline) []byte {
	start := len(b)
	b = appendHeader(b, TypeDecline, d.Version)
	b = appendTLV(b, tlvReason, []byte{uint8(d.Reason)})
	return endMessage(b, start)
}

// Len returns the length AppendDecline adds.
func (d Decline) Len() int { return HeaderLen + tlvHeaderLen + 1 }

// ParseDecline reads a DECLINE at the start of b and returns the number of bytes it took.
func ParseDecline(b []byte) (Decline, int, error) {
	h, tlvs, err := message(b, TypeDecline)
	if err != nil {
		return Decline{}, 0, err
	}
	d := Decline{Version: h.Version}
	seen, err := walkTLVs(tlvs, declineTLVs, d.set)
	if err != nil {
		return Decline{}, 0, err
	}
	if !seen.has(tlvReason) {
		return Decline{}, 0, missing(TypeDecline)
	}
	return d, h.Len, nil
}

func (d *Decline) set(_ uint16, v []byte) error { return setReason(&d.Reason, v) }

func setReason(r *Reason, v []byte) error {
	if err := want(v, 1); err != nil {
		return err
	}
	if v[0] == 0 {
		return fmt.Errorf("reason zero: %w", ErrMalformed)
	}
	*r = Reason(v[0])
	return nil
}
