package negotiate

import (
	"encoding/binary"
	"fmt"
)

// UDOffer is one way in which a gateway takes datagrams: a UD queue pair that every peer may use which proves that it is
// the one it says. Which of the fields after MTU are meaningful depends on Kind.
type UDOffer struct {
	Kind CarrierKind
	// MTU is the largest packet in bytes (256 to 4096, a power of two).
	MTU uint16
	// QPN is the queue pair; 24 bits on a RoCEv2 device.
	QPN uint32
	// QKey must be in every packet to it (IBTA vol. 1, 10.2.5): who has it has read an answer sent to its address.
	QKey uint32

	// Name is the rendezvous socket's file name in shm_dir, as in SHMEndpoint, and Key authorises the meeting: CarrierSHM.
	Name string
	Key  [16]byte

	// GID is the address of the device port and UDPPort where it receives: CarrierSoft and CarrierHW.
	GID     [16]byte
	UDPPort uint16
}

// The UD offer TLV: kind(1), flags(1) = 0, path MTU(2), queue pair(4), Q_Key(4), then by kind.
const (
	udFixedLen    = 2 + 2 + 4 + 4
	udSHMFixedLen = 16     // key; the name follows to the end of the TLV
	udRoCELen     = 16 + 2 // GID, UDP port
)

func appendUDOffer(b []byte, o *UDOffer) []byte {
	b = binary.BigEndian.AppendUint16(b, tlvUDOffer)
	b = binary.BigEndian.AppendUint16(b, uint16(udOfferLen(o)-tlvHeaderLen))
	b = append(b, uint8(o.Kind), 0)
	b = binary.BigEndian.AppendUint16(b, o.MTU)
	b = binary.BigEndian.AppendUint32(b, o.QPN)
	b = binary.BigEndian.AppendUint32(b, o.QKey)
	if o.Kind == CarrierSHM {
		b = append(b, o.Key[:]...)
		return append(b, o.Name...)
	}
	b = append(b, o.GID[:]...)
	return binary.BigEndian.AppendUint16(b, o.UDPPort)
}

func udOfferLen(o *UDOffer) int {
	n := tlvHeaderLen + udFixedLen
	if o.Kind == CarrierSHM {
		return n + udSHMFixedLen + len(o.Name)
	}
	return n + udRoCELen
}

// addUDOffer parses one TLV. A kind this version does not know is skipped: it is an offer, not a demand.
func addUDOffer(list *[]UDOffer, v []byte) error {
	if len(v) < udFixedLen {
		return fmt.Errorf("ud offer of %d bytes: %w", len(v), ErrMalformed)
	}
	o := UDOffer{
		Kind: CarrierKind(v[0]),
		MTU:  binary.BigEndian.Uint16(v[2:]),
		QPN:  binary.BigEndian.Uint32(v[4:]),
		QKey: binary.BigEndian.Uint32(v[8:]),
	}
	var err error
	switch o.Kind {
	case CarrierSHM:
		err = o.parseSHM(v[udFixedLen:])
	case CarrierSoft, CarrierHW:
		err = o.parseRoCE(v[udFixedLen:])
	case CarrierRelay: // cannot carry datagrams
		return fmt.Errorf("relay as an offer: %w", ErrMalformed)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	if !validMTU(o.MTU) {
		return fmt.Errorf("path mtu %d: %w", o.MTU, ErrMalformed)
	}
	if len(*list) == MaxCarriers || FindUDOffer(*list, o.Kind) != nil {
		return fmt.Errorf("ud offer %s too many: %w", o.Kind, ErrMalformed)
	}
	*list = append(*list, o)
	return nil
}

func (o *UDOffer) parseSHM(v []byte) error {
	if len(v) < udSHMFixedLen {
		return fmt.Errorf("shm endpoint of %d bytes: %w", len(v), ErrMalformed)
	}
	o.Key, o.Name = [16]byte(v), string(v[udSHMFixedLen:])
	if !validName(o.Name) {
		return fmt.Errorf("shm rendezvous name %q: %w", o.Name, ErrMalformed)
	}
	return nil
}

func (o *UDOffer) parseRoCE(v []byte) error {
	if err := want(v, udRoCELen); err != nil {
		return err
	}
	o.GID, o.UDPPort = [16]byte(v), binary.BigEndian.Uint16(v[16:])
	if o.QPN > max24 || o.UDPPort == 0 {
		return fmt.Errorf("roce endpoint out of range: %w", ErrMalformed)
	}
	return nil
}

// FindUDOffer returns the offer of this kind, or nil.
func FindUDOffer(list []UDOffer, k CarrierKind) *UDOffer {
	for i := range list {
		if list[i].Kind == k {
			return &list[i]
		}
	}
	return nil
}
