package socket

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// helloSize is the size of a hello.
const helloSize = 80

// helloMagic begins a hello; helloVersion is the only version.
const (
	helloMagic   = 0x52534f42 // "RSOB"
	helloVersion = 1
)

// ErrHello is an invalid out-of-band message.
var ErrHello = errors.New("malformed out-of-band message")

// hello is what the two ends tell each other about their queue pairs over a byte stream. Integers are big-endian:
//
//	 0  magic "RSOB"
//	 4  version 1
//	 5  reserved
//	 6  length of the whole, 80
//	 8  queue pair number
//	12  PSN the sender of this begins with
//	16  GID, zero where there are no addresses
//	32  UDP port of RoCEv2
//	34  path MTU, encoded
//	35  reserved (5)
//	40  connection data (40)
type hello struct {
	qpn     uint32
	psn     uint32
	gid     verbs.GID
	udpPort uint16
	mtu     verbs.MTU
	data    rsocket.ConnData
}

func (h *hello) bytes() []byte {
	b := binary.BigEndian.AppendUint32(nil, helloMagic)
	b = append(b, helloVersion, 0)
	b = binary.BigEndian.AppendUint16(b, helloSize)
	b = binary.BigEndian.AppendUint32(b, h.qpn)
	b = binary.BigEndian.AppendUint32(b, h.psn)
	b = append(b, h.gid[:]...)
	b = binary.BigEndian.AppendUint16(b, h.udpPort)
	b = append(b, byte(h.mtu), 0, 0, 0, 0, 0)
	return h.data.Append(b)
}

func (h *hello) parse(b []byte) error {
	if len(b) < helloSize {
		return fmt.Errorf("%d bytes: %w", len(b), ErrHello)
	}
	if binary.BigEndian.Uint32(b) != helloMagic || binary.BigEndian.Uint16(b[6:]) != helloSize {
		return ErrHello
	}
	if b[4] != helloVersion {
		return fmt.Errorf("out-of-band version %d: %w", b[4], rsocket.ErrVersion)
	}
	data, err := rsocket.ParseConnData(b[40:helloSize])
	if err != nil {
		return err
	}
	*h = hello{
		qpn: binary.BigEndian.Uint32(b[8:]), psn: binary.BigEndian.Uint32(b[12:]),
		gid: verbs.GID(b[16:32]), udpPort: binary.BigEndian.Uint16(b[32:]), mtu: verbs.MTU(b[34]),
		data: data,
	}
	if h.qpn > 0xffffff || h.psn > 0xffffff || h.mtu.Bytes() == 0 {
		return fmt.Errorf("queue pair %d, psn %d, mtu %d: %w", h.qpn, h.psn, h.mtu, ErrHello)
	}
	return nil
}
