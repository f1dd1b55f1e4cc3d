package negotiate

import (
	"fmt"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// Confirm is the client's last word: the connection is carried by Carrier.
type Confirm struct {
	// Version is the version of the ACCEPT.
	Version uint8
	// Carrier is one of the carriers of the ACCEPT, or CarrierRelay.
	Carrier CarrierKind
}

const confirmTLVs = clc.TLVSet(1 << 11)

// AppendConfirm appends c without a MAC.
func AppendConfirm(b []byte, c Confirm) []byte {
	start := len(b)
	b = clc.AppendHeader(b, TypeConfirm, c.Version)
	b = clc.AppendTLV(b, clc.TLVChosen, []byte{uint8(c.Carrier)})
	return clc.EndMessage(b, start)
}

// parseConfirm parses a CONFIRM at the start of b and returns the number of bytes it consumed.
func parseConfirm(b []byte) (Confirm, int, error) {
	h, tlvs, err := clc.Message(b, TypeConfirm)
	if err != nil {
		return Confirm{}, 0, err
	}
	c := Confirm{Version: h.Version}
	seen, err := clc.WalkTLVs(tlvs, confirmTLVs, c.set)
	if err != nil {
		return Confirm{}, 0, err
	}
	if !seen.Has(clc.TLVChosen) {
		return Confirm{}, 0, clc.Missing(TypeConfirm)
	}
	return c, h.Len, nil
}

func (c *Confirm) set(_ uint16, v []byte) error {
	if err := clc.Want(v, 1); err != nil {
		return err
	}
	c.Carrier = CarrierKind(v[0])
	if c.Carrier > CarrierIB {
		return fmt.Errorf("carrier %d: %w", v[0], ErrMalformed)
	}
	return nil
}
