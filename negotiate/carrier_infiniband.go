package negotiate

import (
	"encoding/binary"
	"fmt"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// IBEndpoint is the address of a queue pair on an InfiniBand port. Unlike a RoCE endpoint it has no IP address. The
// receiver asks its subnet administrator for the path to the sender's address, and takes the endpoint only if it agrees
// with that path.
type IBEndpoint struct {
	// GID is the port's GID, and LID its unicast address on the switches, 1 to 0xbfff.
	GID [16]byte
	LID uint16
	// PKey is the partition of the queue pair, with bit 15 set if the port is a full member. Two queue pairs of one
	// partition can talk if at least one of their ports is.
	PKey uint16
	// MTU is the path MTU in bytes that the sender can use, a power of two from 256 to 4096.
	MTU uint16
	// SL is the service level the sender uses, 0 to 15.
	SL uint8
	// QPN and PSN are 24-bit numbers.
	QPN uint32
	PSN uint32
}

const (
	linkLayerAt = 16 + 2 + 2 + 2 + 1
	ibLen       = linkLayerAt + 1 + 4 + 4
	// linkInfiniBand is the InfiniBand link layer. Offers of other link layers have another format and are skipped.
	linkInfiniBand = 1

	maxUnicastLID = 0xbfff
	maxSL         = 15
)

func (e *IBEndpoint) append(b []byte) []byte {
	b = append(b, e.GID[:]...)
	b = binary.BigEndian.AppendUint16(b, e.LID)
	b = binary.BigEndian.AppendUint16(b, e.PKey)
	b = binary.BigEndian.AppendUint16(b, e.MTU)
	b = append(b, e.SL, linkInfiniBand)
	b = binary.BigEndian.AppendUint32(b, e.QPN)
	return binary.BigEndian.AppendUint32(b, e.PSN)
}

// parse parses the endpoint. known is false if it has another link layer.
func (e *IBEndpoint) parse(v []byte) (known bool, err error) {
	if len(v) <= linkLayerAt {
		return false, fmt.Errorf("infiniband endpoint of %d bytes: %w", len(v), ErrMalformed)
	}
	if v[linkLayerAt] != linkInfiniBand {
		return false, nil
	}
	if err := clc.Want(v, ibLen); err != nil {
		return false, err
	}
	*e = IBEndpoint{
		GID: [16]byte(v), LID: binary.BigEndian.Uint16(v[16:]), PKey: binary.BigEndian.Uint16(v[18:]),
		MTU: binary.BigEndian.Uint16(v[20:]), SL: v[22],
		QPN: binary.BigEndian.Uint32(v[24:]), PSN: binary.BigEndian.Uint32(v[28:]),
	}
	if e.LID == 0 || e.LID > maxUnicastLID || e.PKey&^wholeMember == 0 || e.SL > maxSL ||
		e.QPN > clc.Max24 || e.PSN > clc.Max24 || !clc.ValidMTU(e.MTU) {
		return false, fmt.Errorf("infiniband endpoint out of range: %w", ErrMalformed)
	}
	return true, nil
}
