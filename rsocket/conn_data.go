package rsocket

import (
	"encoding/binary"
	"fmt"
)

// connDataSize is the size of rs_conn_data, exchanged once per connection in each direction, either as private data of
// the RDMA CM or in a TLV of the gateway's CLC messages.
const connDataSize = 40

// version is the only protocol version; there is no negotiation.
const version = 1

const (
	flagNet   = 1 << 0 // RS_CONN_FLAG_NET: the sender is big-endian
	flagIomap = 1 << 1 // RS_CONN_FLAG_IOMAP: the sender understands direct placement; stock rsockets always set it
	flagRings = 1 << 2 // our extension between gateways: a grant may begin another ring
)

// ConnData is rs_conn_data. All its integers are in network byte order, whatever the NET flag says.
type ConnData struct {
	// BigEndian is the sender's byte order, in which grants are written into its target list.
	BigEndian bool
	// Iomap says that the sender understands direct placement.
	Iomap bool
	// Rings says that the sender understands grants of other rings than the first. Only gateways set it.
	Rings bool
	// Credits is the number of data messages the peer may send before credits are returned.
	Credits uint16
	// IomapSlots is the number of direct-placement slots after the target list, in the precision of a scaled byte.
	IomapSlots uint16
	// TargetSGL is where the peer writes its grants; its Length counts entries of 16 bytes, not bytes.
	TargetSGL SGE
	// DataBuf is the first grant. Between gateways it is the whole receive ring.
	DataBuf SGE
}

// Append appends the 40 bytes of d to b.
func (d ConnData) Append(b []byte) []byte {
	var flags byte
	if d.BigEndian {
		flags |= flagNet
	}
	if d.Iomap {
		flags |= flagIomap
	}
	if d.Rings {
		flags |= flagRings
	}
	b = append(b, version, flags)
	b = binary.BigEndian.AppendUint16(b, d.Credits)
	b = append(b, 0, 0, 0, scaleDown(d.IomapSlots))
	b = d.TargetSGL.appendConn(b)
	return d.DataBuf.appendConn(b)
}

// ParseConnData parses the first 40 bytes of b; the rest is padding of the carrying message. Too few bytes are
// [ErrConnData], another version is [ErrVersion]; [Stream.Connect] checks the values.
func ParseConnData(b []byte) (ConnData, error) {
	if len(b) < connDataSize {
		return ConnData{}, fmt.Errorf("%d bytes of connection data: %w", len(b), ErrConnData)
	}
	if b[0] != version {
		return ConnData{}, fmt.Errorf("rsocket version %d: %w", b[0], ErrVersion)
	}
	return ConnData{
		BigEndian:  b[1]&flagNet != 0,
		Iomap:      b[1]&flagIomap != 0,
		Rings:      b[1]&flagRings != 0,
		Credits:    binary.BigEndian.Uint16(b[2:]),
		IomapSlots: scaleUp(b[7]),
		TargetSGL:  parseConnSGE(b[8:24]),
		DataBuf:    parseConnSGE(b[24:40]),
	}, nil
}

func (g SGE) appendConn(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, g.Addr)
	b = binary.BigEndian.AppendUint32(b, g.Key)
	return binary.BigEndian.AppendUint32(b, g.Length)
}

func parseConnSGE(b []byte) SGE {
	return SGE{
		Addr:   binary.BigEndian.Uint64(b[0:]),
		Key:    binary.BigEndian.Uint32(b[8:]),
		Length: binary.BigEndian.Uint32(b[12:]),
	}
}

// scaleDown is rs_value_to_scale for 8 bits: small values are stored as they are, others in units of 256, rounded down.
// Larger values become the maximum.
func scaleDown(v uint16) byte {
	switch {
	case v <= 128:
		return byte(v)
	case v >= 0x80<<8:
		return 0xff
	default:
		return 0x80 | byte(v>>8)
	}
}

// scaleUp is rs_scale_to_value for 8 bits.
func scaleUp(b byte) uint16 {
	if b <= 128 {
		return uint16(b)
	}
	return uint16(b&0x7f) << 8
}
