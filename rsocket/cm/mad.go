package cm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
)

// Sizes of a management datagram (IBTA vol. 1, 13.4).
const (
	MADSize   = 256 // the whole datagram
	madHeader = 24  // common header
)

// The common header of all our datagrams: base version 1, class 7
// (communication management), class version 2, method Send.
const (
	madBaseVersion  = 1
	madClassCM      = 0x07
	madClassVersion = 2
	madMethodSend   = 0x03
)

// Errors of the parser.
var (
	// ErrTruncated is a datagram that is not 256 bytes long.
	ErrTruncated = errors.New("truncated datagram")
	// ErrNotCM is a datagram of another class, version or method.
	ErrNotCM = errors.New("not a communication management datagram")
	// ErrUnknownMessage is an attribute that this package does not know, such as LAP and APR.
	ErrUnknownMessage = errors.New("unknown communication management message")
)

// AttrID is the message that a datagram carries (IBTA vol. 1, 16.7.3).
type AttrID uint16

// The messages.
const (
	AttrREQ     AttrID = 0x10 // request for communication
	AttrMRA     AttrID = 0x11 // message receipt acknowledgment: the answer takes time
	AttrREJ     AttrID = 0x12 // reject
	AttrREP     AttrID = 0x13 // reply
	AttrRTU     AttrID = 0x14 // ready to use
	AttrDREQ    AttrID = 0x15 // disconnection request
	AttrDREP    AttrID = 0x16 // disconnection reply
	AttrSIDRREQ AttrID = 0x17 // service id resolution request
	AttrSIDRREP AttrID = 0x18 // service id resolution response
)

var attrNames = [...]string{"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP"}

// String returns the standard name of the message.
func (a AttrID) String() string { return nameOf(attrNames[:], int(a)-int(AttrREQ), int(a), "ATTR") }

// nameOf returns names[i], or prefix(n) for a number without a name.
func nameOf(names []string, i, n int, prefix string) string {
	if i >= 0 && i < len(names) && names[i] != "" {
		return names[i]
	}
	return prefix + "(" + strconv.Itoa(n) + ")"
}

// Message is one of *REQ, *MRA, *REJ, *REP, *RTU, *DREQ, *DREP, *SIDRREQ and
// *SIDRREP.
type Message interface {
	Attr() AttrID
	// put encodes the message into a zeroed body; parse is its inverse and
	// refers to the body afterwards.
	put(b []byte)
	parse(b []byte) error
}

// Append appends the datagram that carries m: 256 bytes, in network byte order. Private data that does not fit is cut
// off.
func Append(b []byte, tid uint64, m Message) []byte {
	n := len(b)
	b = append(b, make([]byte, MADSize)...)
	d := b[n:]
	d[0], d[1], d[2], d[3] = madBaseVersion, madClassCM, madClassVersion, madMethodSend
	binary.BigEndian.PutUint64(d[8:], tid)
	binary.BigEndian.PutUint16(d[16:], uint16(m.Attr()))
	m.put(d[madHeader:])
	return b
}

// Parse decodes a datagram. tid is its transaction id, which answers repeat. The message's private data is the whole
// field, with its padding zeros, and refers to b.
func Parse(b []byte) (tid uint64, m Message, err error) {
	if len(b) != MADSize {
		return 0, nil, fmt.Errorf("%d bytes: %w", len(b), ErrTruncated)
	}
	if b[0] != madBaseVersion || b[1] != madClassCM || b[2] != madClassVersion || b[3] != madMethodSend {
		return 0, nil, fmt.Errorf("header %x: %w", b[:4], ErrNotCM)
	}
	attr := AttrID(binary.BigEndian.Uint16(b[16:]))
	if m = newMessage(attr); m == nil {
		return 0, nil, fmt.Errorf("%v: %w", attr, ErrUnknownMessage)
	}
	if err := m.parse(b[madHeader:]); err != nil {
		return 0, nil, fmt.Errorf("%v: %w", attr, err)
	}
	return binary.BigEndian.Uint64(b[8:]), m, nil
}

func newMessage(a AttrID) Message {
	switch a {
	case AttrREQ:
		return new(REQ)
	case AttrMRA:
		return new(MRA)
	case AttrREJ:
		return new(REJ)
	case AttrREP:
		return new(REP)
	case AttrRTU:
		return new(RTU)
	case AttrDREQ:
		return new(DREQ)
	case AttrDREP:
		return new(DREP)
	case AttrSIDRREQ:
		return new(SIDRREQ)
	case AttrSIDRREP:
		return new(SIDRREP)
	}
	return nil
}

// Accessors of big-endian fields of 16, 24, 32 and 64 bits. put24 does not touch the byte after the field.
func get16(b []byte) uint16    { return binary.BigEndian.Uint16(b) }
func get32(b []byte) uint32    { return binary.BigEndian.Uint32(b) }
func get64(b []byte) uint64    { return binary.BigEndian.Uint64(b) }
func put16(b []byte, v uint16) { binary.BigEndian.PutUint16(b, v) }
func put32(b []byte, v uint32) { binary.BigEndian.PutUint32(b, v) }
func put64(b []byte, v uint64) { binary.BigEndian.PutUint64(b, v) }
func get24(b []byte) uint32    { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }
func put24(b []byte, v uint32) { b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v) }

// bit is 1 << shift for true.
func bit(v bool, shift uint) byte {
	if v {
		return 1 << shift
	}
	return 0
}
