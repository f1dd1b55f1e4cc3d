package resolve

import (
	"encoding/binary"
	"fmt"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// UDOffer is one way for a gateway to receive datagrams: a UD queue pair that every peer may use that has proved its
// address. Kind says which of the fields after QKey are valid.
type UDOffer struct {
	Kind negotiate.CarrierKind
	// MTU is the largest packet in bytes, a power of two from 256 to 4096.
	MTU uint16
	// QPN is the queue pair number; 24 bits on a RoCEv2 device.
	QPN uint32
	// QKey must be in every packet to the queue pair (IBTA vol. 1, 10.2.5). A host that knows it has read an answer
	// sent to its address.
	QKey uint32

	// Name (CarrierSHM) is the rendezvous socket's file name in shm_dir, as in SHMEndpoint; Key authorises the
	// rendezvous.
	Name string
	Key  [16]byte

	// GID (CarrierSoft, CarrierHW) is the address of the device port, and UDPPort is where it receives.
	GID     [16]byte
	UDPPort uint16
	// Mixed allows devices of both RoCEv2 kinds: in a message, the queue pair may talk to one of the other kind; in an
	// action, it does.
	Mixed bool
}

// A UD offer TLV is kind(1), flags(1), path MTU(2), queue pair(4), Q_Key(4), then fields by kind.
const (
	udFixedLen    = 2 + 2 + 4 + 4
	udSHMFixedLen = 16     // key; the name follows to the end of the TLV
	udRoCELen     = 16 + 2 // GID, UDP port
	flagMixed     = 1      // see UDOffer.Mixed; other flags are ignored
)

func appendUDOffer(b []byte, o *UDOffer) []byte {
	b = binary.BigEndian.AppendUint16(b, clc.TLVUDOffer)
	b = binary.BigEndian.AppendUint16(b, uint16(udOfferLen(o)-clc.TLVHeaderLen))
	b = append(b, uint8(o.Kind), o.flags())
	b = binary.BigEndian.AppendUint16(b, o.MTU)
	b = binary.BigEndian.AppendUint32(b, o.QPN)
	b = binary.BigEndian.AppendUint32(b, o.QKey)
	if o.Kind == negotiate.CarrierSHM {
		b = append(b, o.Key[:]...)
		return append(b, o.Name...)
	}
	b = append(b, o.GID[:]...)
	return binary.BigEndian.AppendUint16(b, o.UDPPort)
}

func (o *UDOffer) flags() uint8 {
	if o.Mixed && o.Kind.IsRoCE() {
		return flagMixed
	}
	return 0
}

func udOfferLen(o *UDOffer) int {
	n := clc.TLVHeaderLen + udFixedLen
	if o.Kind == negotiate.CarrierSHM {
		return n + udSHMFixedLen + len(o.Name)
	}
	return n + udRoCELen
}

// addUDOffer parses one TLV. It skips a kind that this version does not know, since the receiver need not use every
// offer.
func addUDOffer(list *[]UDOffer, v []byte) error {
	if len(v) < udFixedLen {
		return fmt.Errorf("ud offer of %d bytes: %w", len(v), clc.ErrMalformed)
	}
	o := UDOffer{
		Kind: negotiate.CarrierKind(v[0]),
		MTU:  binary.BigEndian.Uint16(v[2:]),
		QPN:  binary.BigEndian.Uint32(v[4:]),
		QKey: binary.BigEndian.Uint32(v[8:]),
	}
	var err error
	switch o.Kind {
	case negotiate.CarrierSHM:
		err = o.parseSHM(v[udFixedLen:])
	case negotiate.CarrierSoft, negotiate.CarrierHW:
		o.Mixed = v[1]&flagMixed != 0
		err = o.parseRoCE(v[udFixedLen:])
	case negotiate.CarrierRelay: // cannot carry datagrams
		return fmt.Errorf("relay as an offer: %w", clc.ErrMalformed)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	if !clc.ValidMTU(o.MTU) {
		return fmt.Errorf("path mtu %d: %w", o.MTU, clc.ErrMalformed)
	}
	if len(*list) == negotiate.MaxCarriers || FindUDOffer(*list, o.Kind) != nil {
		return fmt.Errorf("ud offer %s too many: %w", o.Kind, clc.ErrMalformed)
	}
	*list = append(*list, o)
	return nil
}

func (o *UDOffer) parseSHM(v []byte) error {
	if len(v) < udSHMFixedLen {
		return fmt.Errorf("shm endpoint of %d bytes: %w", len(v), clc.ErrMalformed)
	}
	o.Key, o.Name = [16]byte(v), string(v[udSHMFixedLen:])
	if !clc.ValidName(o.Name) {
		return fmt.Errorf("shm rendezvous name %q: %w", o.Name, clc.ErrMalformed)
	}
	return nil
}

func (o *UDOffer) parseRoCE(v []byte) error {
	if err := clc.Want(v, udRoCELen); err != nil {
		return err
	}
	o.GID, o.UDPPort = [16]byte(v), binary.BigEndian.Uint16(v[16:])
	if o.QPN > clc.Max24 || o.UDPPort == 0 {
		return fmt.Errorf("roce endpoint out of range: %w", clc.ErrMalformed)
	}
	if o.Mixed && o.UDPPort != clc.RoCEPort {
		return fmt.Errorf("mixed ends at udp port %d: %w", o.UDPPort, clc.ErrMalformed)
	}
	return nil
}

// FindUDOffer returns the offer of this kind, or nil.
func FindUDOffer(list []UDOffer, k negotiate.CarrierKind) *UDOffer {
	for i := range list {
		if list[i].Kind == k {
			return &list[i]
		}
	}
	return nil
}

// findMixed returns a RoCEv2 offer that a device of the other kind may use, or nil.
func findMixed(list []UDOffer) *UDOffer {
	for i := range list {
		if list[i].Mixed && list[i].Kind.IsRoCE() {
			return &list[i]
		}
	}
	return nil
}
