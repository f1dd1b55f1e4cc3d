package between

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// kind is the type of a message.
type kind uint8

const (
	hello kind = iota + 16
	offer
	answer
	confirm
	decline
	attached
	recall
	where
	opened
	ended
	ping
	pong
	kinds
)

// MinOrder and MaxOrder bound the order of the rings in an OFFER and an ANSWER.
const (
	MinOrder = 16
	MaxOrder = 22
)

// Hello is what a gateway says about itself.
type Hello struct {
	// MinVersion and MaxVersion are the range of versions that it speaks.
	MinVersion, MaxVersion uint8
	// GatewayID is random for each start. HostID identifies the kernel; zero if the gateway does not tell.
	GatewayID, HostID [16]byte
	// Random is fresh for each control connection, so that no two have the same MAC chain.
	Random [16]byte
}

// Name identifies the end of a connection to the server's gateway.
type Name struct {
	// ClientISN and ServerISN are the sequence numbers of the SYN and the SYN-ACK.
	ClientISN, ServerISN uint32
	// ClientPort and ServerPort are not 0.
	ClientPort, ServerPort uint16
}

// Offer asks for the other end of a connection.
type Offer struct {
	Name Name
	// Order is that of the rings of both ends, MinOrder to MaxOrder.
	Order uint8
	// Nonces announce OPEN in the kernel's stream: first the client's, then the server's.
	Nonces [2][16]byte
	// Carriers is in the client's order of preference, at most negotiate.MaxCarriers.
	Carriers []negotiate.CarrierOffer
}

// Place is the position of one end's direction in the kernel's stream.
type Place struct {
	// Sent is how many bytes were given to the kernel before OPEN.
	Sent uint64
	// At is the position of OPEN, if Opened.
	Opened bool
	At     uint64
}

// message is a message of the control connection. Its kind decides which fields are valid.
type message struct {
	kind    kind
	version uint8 // the lowest version in the opener's HELLO, otherwise the chosen one
	number  uint64
	hello   Hello
	offer   Offer // an ANSWER has only its order and carriers
	chosen  negotiate.CarrierKind
	reason  negotiate.Reason
	place   Place
	written uint64
	exited  bool   // written is present
	read    uint64 // 1 more than the field; 0: it is not present
}

// shapes has the names of the messages, and the fields that each must and may have.
var shapes = [kinds]struct {
	name      string
	must, may clc.TLVSet
}{
	hello:    {"hello", clc.Set(clc.TLVVersions, clc.TLVGatewayID, clc.TLVRandom), clc.Set(clc.TLVHostID)},
	offer:    {"offer", clc.Set(clc.TLVNumber, clc.TLVName, clc.TLVOrder, clc.TLVNonces), clc.Set(clc.TLVCarrier, clc.TLVPartition)},
	answer:   {"answer", clc.Set(clc.TLVNumber, clc.TLVOrder, clc.TLVCarrier), clc.Set(clc.TLVPartition)},
	confirm:  {"confirm", clc.Set(clc.TLVNumber, clc.TLVChosen), 0},
	decline:  {"decline", clc.Set(clc.TLVReason), clc.Set(clc.TLVNumber)},
	attached: {"attached", clc.Set(clc.TLVNumber), 0},
	recall:   {"recall", clc.Set(clc.TLVNumber), 0},
	where:    {"where", clc.Set(clc.TLVNumber), 0},
	opened:   {"opened", clc.Set(clc.TLVNumber, clc.TLVSent), clc.Set(clc.TLVOpen)},
	ended:    {"ended", clc.Set(clc.TLVNumber), clc.Set(clc.TLVWritten, clc.TLVRead)},
	ping:     {"ping", clc.Set(clc.TLVNumber), 0},
	pong:     {"pong", clc.Set(clc.TLVNumber), 0},
}

// fields has the names of the fields of messages.
var fields = []struct {
	tlv  uint16
	name string
}{
	{clc.TLVVersions, "versions"},
	{clc.TLVGatewayID, "gateway id"},
	{clc.TLVHostID, "host id"},
	{clc.TLVRandom, "random"},
	{clc.TLVNumber, "number"},
	{clc.TLVName, "name"},
	{clc.TLVOrder, "order"},
	{clc.TLVNonces, "nonces"},
	{clc.TLVCarrier, "carrier"},
	{clc.TLVPartition, "partition"},
	{clc.TLVChosen, "chosen"},
	{clc.TLVReason, "reason"},
	{clc.TLVSent, "sent"},
	{clc.TLVOpen, "open"},
	{clc.TLVWritten, "written"},
	{clc.TLVRead, "read"},
	{clc.TLVMAC, "mac"},
}

// FieldError is an error in one field of a message, or in "message" as a whole.
type FieldError struct {
	Message, Field string
	Err            error
}

// Error implements error.
func (e *FieldError) Error() string {
	return fmt.Sprintf("control message %s, %s: %v", e.Message, e.Field, e.Err)
}

// Unwrap returns the error without its place: it wraps negotiate.ErrMalformed, or is a *negotiate.CriticalTLVError.
func (e *FieldError) Unwrap() error { return e.Err }

// append appends the message without a MAC.
func (m *message) append(b []byte) []byte {
	start := len(b)
	b = clc.AppendHeader(b, clc.MessageType(m.kind), m.version)
	if m.kind == hello {
		b = clc.AppendTLV(b, clc.TLVVersions, []byte{m.hello.MinVersion, m.hello.MaxVersion})
		b = clc.AppendIdentity(b, m.hello.GatewayID, m.hello.HostID, 0)
		b = clc.AppendTLV(b, clc.TLVRandom, m.hello.Random[:])
	}
	if m.number != 0 {
		b = append64(b, clc.TLVNumber, m.number)
	}
	switch m.kind {
	case offer:
		n, name := &m.offer.Name, []byte(nil)
		name = binary.BigEndian.AppendUint32(name, n.ClientISN)
		name = binary.BigEndian.AppendUint32(name, n.ServerISN)
		name = binary.BigEndian.AppendUint16(name, n.ClientPort)
		name = binary.BigEndian.AppendUint16(name, n.ServerPort)
		b = clc.AppendTLV(b, clc.TLVName, name)
		b = clc.AppendTLV(b, clc.TLVOrder, []byte{m.offer.Order})
		b = clc.AppendTLV(b, clc.TLVNonces, append(m.offer.Nonces[0][:], m.offer.Nonces[1][:]...))
		b = negotiate.AppendCarriers(b, m.offer.Carriers)
	case answer:
		b = clc.AppendTLV(b, clc.TLVOrder, []byte{m.offer.Order})
		b = negotiate.AppendCarriers(b, m.offer.Carriers)
	case confirm:
		b = clc.AppendTLV(b, clc.TLVChosen, []byte{uint8(m.chosen)})
	case decline:
		b = clc.AppendTLV(b, clc.TLVReason, []byte{uint8(m.reason)})
	case opened:
		b = append64(b, clc.TLVSent, m.place.Sent)
		if m.place.Opened {
			b = append64(b, clc.TLVOpen, m.place.At)
		}
	case ended:
		if m.exited {
			b = append64(b, clc.TLVWritten, m.written)
		}
		if m.read != 0 {
			b = append64(b, clc.TLVRead, m.read-1)
		}
	default:
	}
	return clc.EndMessage(b, start)
}

func append64(b []byte, typ uint16, n uint64) []byte {
	return clc.AppendTLV(b, typ, binary.BigEndian.AppendUint64(nil, n))
}

// parse parses the message at the start of b, which may have a MAC, and returns the number of bytes it consumed. The
// result does not alias b.
func parse(b []byte) (message, int, error) {
	h, _, err := clc.ParseHeader(b)
	if err != nil {
		return message{}, 0, err
	}
	k := kind(h.Type)
	if k < hello || k >= kinds {
		return message{}, 0, &FieldError{h.Type.String(), "type", clc.ErrMalformed}
	}
	if len(b) < h.Len {
		return message{}, 0, clc.ErrShort
	}
	m, shape := message{kind: k, version: h.Version}, &shapes[k]
	seen, err := clc.WalkTLVs(b[clc.HeaderLen:h.Len], shape.must|shape.may, m.set)
	if err != nil {
		return message{}, 0, fieldError(shape.name, err)
	}
	for _, f := range fields {
		if shape.must.Has(f.tlv) && !seen.Has(f.tlv) {
			return message{}, 0, &FieldError{shape.name, f.name, fmt.Errorf("missing: %w", clc.ErrMalformed)}
		}
	}
	if k == answer && len(m.offer.Carriers) == 0 {
		return message{}, 0, &FieldError{shape.name, "carrier", fmt.Errorf("none known: %w", clc.ErrMalformed)}
	}
	return m, h.Len, nil
}

// fieldError finds the field that an error of WalkTLVs is about.
func fieldError(name string, err error) error {
	e := &FieldError{name, "message", err}
	if t, ok := errors.AsType[*clc.TLVError](err); ok {
		for _, f := range fields {
			if f.tlv == t.Type {
				e.Field, e.Err = f.name, t.Err
			}
		}
	}
	return e
}

func (m *message) set(typ uint16, v []byte) error {
	switch typ {
	case clc.TLVVersions:
		return clc.SetVersions(v, &m.hello.MinVersion, &m.hello.MaxVersion)
	case clc.TLVRandom:
		return clc.SetID(&m.hello.Random, v)
	case clc.TLVNumber:
		return set64(&m.number, v, 1)
	case clc.TLVName:
		return m.offer.Name.parse(v)
	case clc.TLVOrder:
		return m.offer.setOrder(v)
	case clc.TLVNonces:
		if err := clc.Want(v, 32); err != nil {
			return err
		}
		m.offer.Nonces = [2][16]byte{[16]byte(v), [16]byte(v[16:])}
		return nil
	case clc.TLVCarrier, clc.TLVPartition:
		return negotiate.SetCarrier(&m.offer.Carriers, typ, v)
	case clc.TLVChosen:
		if err := clc.Want(v, 1); err != nil {
			return err
		}
		m.chosen = negotiate.CarrierKind(v[0]) // Control refuses it unless it is one of the ANSWER's
		return nil
	case clc.TLVReason:
		return clc.SetReason(&m.reason, v)
	case clc.TLVSent:
		return set64(&m.place.Sent, v, 0)
	case clc.TLVOpen:
		m.place.Opened = true
		return set64(&m.place.At, v, 0)
	case clc.TLVWritten:
		m.exited = true
		return set64(&m.written, v, 0)
	case clc.TLVRead:
		err := set64(&m.read, v, 0)
		m.read++
		return err
	}
	return clc.SetIdentity(typ, v, &m.hello.GatewayID, &m.hello.HostID, nil)
}

func (n *Name) parse(v []byte) error {
	if err := clc.Want(v, 12); err != nil {
		return err
	}
	*n = Name{
		ClientISN: binary.BigEndian.Uint32(v), ServerISN: binary.BigEndian.Uint32(v[4:]),
		ClientPort: binary.BigEndian.Uint16(v[8:]), ServerPort: binary.BigEndian.Uint16(v[10:]),
	}
	if n.ClientPort == 0 || n.ServerPort == 0 {
		return fmt.Errorf("port zero: %w", clc.ErrMalformed)
	}
	return nil
}

func (o *Offer) setOrder(v []byte) error {
	if err := clc.Want(v, 1); err != nil {
		return err
	}
	if o.Order = v[0]; o.Order < MinOrder || o.Order > MaxOrder {
		return fmt.Errorf("%d: %w", v[0], clc.ErrMalformed)
	}
	return nil
}

// set64 parses an unsigned number of eight bytes that must be at least least and fit an int64.
func set64(n *uint64, v []byte, least uint64) error {
	if err := clc.Want(v, 8); err != nil {
		return err
	}
	if *n = binary.BigEndian.Uint64(v); *n < least || *n > math.MaxInt64 {
		return fmt.Errorf("%d: %w", *n, clc.ErrMalformed)
	}
	return nil
}
