package negotiate

import (
	"encoding/binary"
	"fmt"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// A carrier TLV is kind(1), flags(1), rsocket connection data(40), then the endpoint, whose form depends on the kind.
const (
	// MaxCarriers bounds the carriers of one message.
	MaxCarriers = 4

	carrierFixedLen = 2 + connDataLen
	shmFixedLen     = 16 + 4 // key, QPN; the name follows to the end of the TLV
	roceLen         = 16 + 2 + 2 + 4 + 4
	partitionLen    = 2

	wholeMember  = 0x8000 // full member of a partition (IBTA vol. 1, 10.9.1.1)
	everyoneElse = 0xffff // the default partition

	flagMixed = 1 // see CarrierOffer.Mixed; other flags are ignored
)

// AppendCarriers appends the TLVs of cs.
func AppendCarriers(b []byte, cs []CarrierOffer) []byte {
	for i := range cs {
		b = appendCarrier(b, &cs[i])
	}
	return b
}

func appendCarrier(b []byte, c *CarrierOffer) []byte {
	v := append([]byte{uint8(c.Kind), c.flags()}, c.Conn[:]...)
	switch c.Kind {
	case CarrierSHM:
		v = append(v, c.SHM.Key[:]...)
		v = binary.BigEndian.AppendUint32(v, c.SHM.QPN)
		v = append(v, c.SHM.Name...)
	case CarrierIB:
		v = c.IB.append(v)
	default:
		v = append(v, c.RoCE.GID[:]...)
		v = binary.BigEndian.AppendUint16(v, c.RoCE.UDPPort)
		v = binary.BigEndian.AppendUint16(v, c.RoCE.MTU)
		v = binary.BigEndian.AppendUint32(v, c.RoCE.QPN)
		v = binary.BigEndian.AppendUint32(v, c.RoCE.PSN)
	}
	b = clc.AppendTLV(b, clc.TLVCarrier, v)
	if c.Kind == CarrierSoft && c.RoCE.PKey != 0 {
		b = clc.AppendTLV(b, clc.TLVPartition, binary.BigEndian.AppendUint16(nil, c.RoCE.PKey))
	}
	return b
}

func (c *CarrierOffer) flags() uint8 {
	if c.Mixed && c.Kind.IsRoCE() {
		return flagMixed
	}
	return 0
}

// Answers reports whether c is a valid answer to o, the offer of the same kind; nil if there was none.
func (c *CarrierOffer) Answers(o *CarrierOffer) bool {
	return o != nil && c.Kind == o.Kind && (!c.Mixed || o.Mixed && c.RoCE.PKey == 0)
}

// SetCarrier parses one TLV that AppendCarriers has written.
func SetCarrier(cs *[]CarrierOffer, typ uint16, v []byte) error {
	if typ == clc.TLVPartition {
		return setPartition(*cs, v)
	}
	return addCarrier(cs, v)
}

// addCarrier parses one carrier TLV. It skips an unknown kind or link layer, since the receiver need not use every
// offer.
func addCarrier(cs *[]CarrierOffer, v []byte) error {
	if len(v) < carrierFixedLen {
		return fmt.Errorf("carrier of %d bytes: %w", len(v), ErrMalformed)
	}
	c := CarrierOffer{Kind: CarrierKind(v[0]), Conn: ConnData(v[2:carrierFixedLen])}
	known := true
	var err error
	switch c.Kind {
	case CarrierSHM:
		err = c.SHM.parse(v[carrierFixedLen:])
	case CarrierSoft, CarrierHW:
		err = c.RoCE.parse(v[carrierFixedLen:])
		c.Mixed = v[1]&flagMixed != 0
		if err == nil && c.Mixed && c.RoCE.UDPPort != clc.RoCEPort {
			err = fmt.Errorf("mixed ends at udp port %d: %w", c.RoCE.UDPPort, ErrMalformed)
		}
	case CarrierIB:
		known, err = c.IB.parse(v[carrierFixedLen:])
	case CarrierRelay: // needs no offer
		return fmt.Errorf("relay as an offer: %w", ErrMalformed)
	default:
		known = false
	}
	if err != nil || !known {
		return err
	}
	if len(*cs) == MaxCarriers || FindCarrier(*cs, c.Kind) != nil {
		return fmt.Errorf("carrier %s too many: %w", c.Kind, ErrMalformed)
	}
	*cs = append(*cs, c)
	return nil
}

// setPartition parses the partition key of the soft carrier that precedes it. Without such a carrier it belongs to a
// carrier of another version and is ignored.
func setPartition(cs []CarrierOffer, v []byte) error {
	if err := clc.Want(v, partitionLen); err != nil {
		return err
	}
	k := binary.BigEndian.Uint16(v)
	if k <= wholeMember || k == everyoneElse {
		return fmt.Errorf("partition key %#04x: %w", k, ErrMalformed)
	}
	if c := FindCarrier(cs, CarrierSoft); c != nil {
		c.RoCE.PKey = k
	}
	return nil
}

// FindCarrier returns the offer of this kind, or nil.
func FindCarrier(cs []CarrierOffer, k CarrierKind) *CarrierOffer {
	for i := range cs {
		if cs[i].Kind == k {
			return &cs[i]
		}
	}
	return nil
}

func (e *SHMEndpoint) parse(v []byte) error {
	if len(v) < shmFixedLen {
		return fmt.Errorf("shm endpoint of %d bytes: %w", len(v), ErrMalformed)
	}
	e.Key = [16]byte(v)
	e.QPN = binary.BigEndian.Uint32(v[16:])
	e.Name = string(v[shmFixedLen:])
	if !clc.ValidName(e.Name) {
		return fmt.Errorf("shm rendezvous name %q: %w", e.Name, ErrMalformed)
	}
	return nil
}

func (e *RoCEEndpoint) parse(v []byte) error {
	if err := clc.Want(v, roceLen); err != nil {
		return err
	}
	*e = RoCEEndpoint{
		GID:     [16]byte(v),
		UDPPort: binary.BigEndian.Uint16(v[16:]),
		MTU:     binary.BigEndian.Uint16(v[18:]),
		QPN:     binary.BigEndian.Uint32(v[20:]),
		PSN:     binary.BigEndian.Uint32(v[24:]),
	}
	if e.QPN > clc.Max24 || e.PSN > clc.Max24 || e.UDPPort == 0 || !clc.ValidMTU(e.MTU) {
		return fmt.Errorf("roce endpoint out of range: %w", ErrMalformed)
	}
	return nil
}
