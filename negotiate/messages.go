package negotiate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// Properties of all CLC messages (docs/PROTOCOL.md "CLC messages"). The name is that of SMC's connection layer control,
// which does the same job.
const (
	// Version is the protocol version that this package speaks; MinVersion is the oldest that it accepts.
	Version    = clc.Version
	MinVersion = clc.MinVersion

	// HeaderLen is the size of the header of every CLC message.
	HeaderLen = clc.HeaderLen
	// MaxMessageLen bounds a whole CLC message.
	MaxMessageLen = clc.MaxMessageLen
	// MaxRendezvousName bounds SHMEndpoint.Name.
	MaxRendezvousName = clc.MaxRendezvousName
)

// Errors of the codecs. Every other error of a CLC parser wraps one of these, or is a *CriticalTLVError.
var (
	// ErrShort says that the bytes are valid so far but incomplete.
	ErrShort = clc.ErrShort
	// ErrMalformed says that no further bytes can make the message valid.
	ErrMalformed = clc.ErrMalformed
)

// CriticalTLVError reports an unknown TLV that its sender marked as critical.
type CriticalTLVError = clc.CriticalTLVError

// MessageType is the type of a CLC message.
type MessageType = clc.MessageType

// The messages of a handshake.
const (
	TypeProposal = clc.TypeProposal
	TypeAccept   = clc.TypeAccept
	TypeConfirm  = clc.TypeConfirm
	TypeDecline  = clc.TypeDecline
	TypeAsk      = clc.TypeAsk
)

// Header is the header of a CLC message.
type Header = clc.Header

// ParseHeader parses the header of a CLC message. It rejects a wrong eyecatcher at its first wrong byte.
func ParseHeader(b []byte) (Header, int, error) { return clc.ParseHeader(b) }

// ReasonOf maps an error of a CLC or record codec to the reason for DECLINE or ABORT.
func ReasonOf(err error) Reason {
	var critical *CriticalTLVError
	switch {
	case err == nil:
		return ReasonNone
	case errors.As(err, &critical):
		return ReasonVersion
	case errors.Is(err, ErrAuth):
		return ReasonAuthFailed
	}
	return ReasonProtocolError
}

// Proposal is the client's first message: its identity and the queue pairs that it has made for this connection.
type Proposal struct {
	// Nonce is the nonce of the option on the SYN. It is always the first TLV, on which guard relies.
	Nonce uint16
	// MinVersion and MaxVersion are the range of versions that the client speaks.
	MinVersion, MaxVersion uint8
	// GatewayID identifies the client's gateway; it is random for each start.
	GatewayID [16]byte
	// HostID identifies the client's kernel (an HMAC of the boot id); zero if the client does not tell.
	HostID [16]byte
	// DatagramPort is the UDP port for datagram resolution between gateways, 0 for none.
	DatagramPort uint16
	// Software is the version of the sender's program, at most 16 visible ASCII characters; empty if the sender does
	// not tell.
	Software string
	// Budget is how long after sending this message the client waits for an answer before it asks for one. On the wire
	// it is in milliseconds, rounded up.
	Budget time.Duration
	// Random is fresh in every authenticated message, so that no two handshakes have the same MAC chain; zero if
	// absent.
	Random [16]byte
	// Carriers is in the client's order of preference: at most MaxCarriers, one of each kind.
	Carriers []CarrierOffer
}

const proposalTLVs = clc.TLVSet(1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<17 | 1<<19 | 1<<20)

// AppendProposal appends p without a MAC.
func AppendProposal(b []byte, p *Proposal) []byte {
	start := len(b)
	b = clc.AppendHeader(b, TypeProposal, p.MinVersion)
	b = clc.AppendTLV(b, clc.TLVNonce, binary.BigEndian.AppendUint16(nil, p.Nonce))
	b = clc.AppendTLV(b, clc.TLVVersions, []byte{p.MinVersion, p.MaxVersion})
	b = clc.AppendTLV(b, clc.TLVBudget, binary.BigEndian.AppendUint32(nil, budgetMillis(p.Budget)))
	b = clc.AppendIdentity(b, p.GatewayID, p.HostID, p.DatagramPort)
	b = clc.AppendSoftware(b, p.Software)
	b = clc.AppendRandom(b, p.Random)
	b = AppendCarriers(b, p.Carriers)
	return clc.EndMessage(b, start)
}

// parseProposal parses a PROPOSAL at the start of b and returns the number of bytes it consumed.
func parseProposal(b []byte) (Proposal, int, error) {
	h, tlvs, err := clc.Message(b, TypeProposal)
	if err != nil {
		return Proposal{}, 0, err
	}
	if len(tlvs) < clc.TLVHeaderLen || binary.BigEndian.Uint16(tlvs) != clc.TLVNonce {
		return Proposal{}, 0, fmt.Errorf("clc proposal not starting with the nonce: %w", ErrMalformed)
	}
	var p Proposal
	if err := clc.Read(TypeProposal, tlvs, proposalTLVs, p.set, clc.TLVVersions, clc.TLVGatewayID, clc.TLVBudget); err != nil {
		return Proposal{}, 0, err
	}
	return p, h.Len, nil
}

func (p *Proposal) set(typ uint16, v []byte) error {
	switch typ {
	case clc.TLVNonce:
		return clc.SetUint16(&p.Nonce, v)
	case clc.TLVVersions:
		return clc.SetVersions(v, &p.MinVersion, &p.MaxVersion)
	case clc.TLVBudget:
		if err := clc.Want(v, 4); err != nil {
			return err
		}
		p.Budget = time.Duration(binary.BigEndian.Uint32(v)) * time.Millisecond
		return nil
	case clc.TLVSoftware:
		return clc.SetSoftware(&p.Software, v)
	case clc.TLVRandom:
		return clc.SetID(&p.Random, v)
	case clc.TLVCarrier, clc.TLVPartition:
		return SetCarrier(&p.Carriers, typ, v)
	}
	return clc.SetIdentity(typ, v, &p.GatewayID, &p.HostID, &p.DatagramPort)
}

// budgetMillis converts d to milliseconds, rounding up: the server must not take 1.5 ms for 1.
func budgetMillis(d time.Duration) uint32 {
	ms := (max(d, 0) + time.Millisecond - 1) / time.Millisecond
	return uint32(min(ms, 1<<32-1))
}

// Accept is the server's consent. When it is sent, the server's application is connected, memory is reserved, and the
// queue pairs are ready to echo proofs.
type Accept struct {
	// Version is the version that both sides use from here on; it travels in the header.
	Version uint8
	// GatewayID identifies the server's gateway.
	GatewayID [16]byte
	// HostID identifies the server's kernel; zero if the server does not tell.
	HostID [16]byte
	// DatagramPort is the UDP port for datagram resolution, 0 for none.
	DatagramPort uint16
	// Software is the version of the sender's program, at most 16 visible ASCII characters; empty if the sender does
	// not tell.
	Software string
	// Random is fresh in every authenticated message, so that no two handshakes have the same MAC chain; zero if
	// absent.
	Random [16]byte
	// Carriers lists the offered carriers that the server can use, 1 to MaxCarriers, in the order the client should try
	// them.
	Carriers []CarrierOffer
}

const acceptTLVs = clc.TLVSet(1<<3 | 1<<4 | 1<<5 | 1<<7 | 1<<17 | 1<<19 | 1<<20)

// encodeAccept encodes a without a MAC.
func encodeAccept(a *Accept) []byte {
	b := clc.AppendHeader(nil, TypeAccept, a.Version)
	b = clc.AppendIdentity(b, a.GatewayID, a.HostID, a.DatagramPort)
	b = clc.AppendSoftware(b, a.Software)
	b = clc.AppendRandom(b, a.Random)
	b = AppendCarriers(b, a.Carriers)
	return clc.EndMessage(b, 0)
}

// ParseAccept parses an ACCEPT at the start of b and returns the number of bytes it consumed.
func ParseAccept(b []byte) (Accept, int, error) {
	var a Accept
	h, err := clc.ReadMessage(TypeAccept, b, acceptTLVs, a.set, clc.TLVGatewayID)
	if err != nil {
		return Accept{}, 0, err
	}
	a.Version = h.Version
	if len(a.Carriers) == 0 {
		return Accept{}, 0, fmt.Errorf("clc accept without a known carrier: %w", ErrMalformed)
	}
	return a, h.Len, nil
}

func (a *Accept) set(typ uint16, v []byte) error {
	switch typ {
	case clc.TLVSoftware:
		return clc.SetSoftware(&a.Software, v)
	case clc.TLVRandom:
		return clc.SetID(&a.Random, v)
	case clc.TLVCarrier, clc.TLVPartition:
		return SetCarrier(&a.Carriers, typ, v)
	}
	return clc.SetIdentity(typ, v, &a.GatewayID, &a.HostID, &a.DatagramPort)
}

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
	var c Confirm
	h, err := clc.ReadMessage(TypeConfirm, b, confirmTLVs, c.set, clc.TLVChosen)
	if err != nil {
		return Confirm{}, 0, err
	}
	c.Version = h.Version
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

// Decline ends the negotiation: the connection is not carried.
type Decline struct {
	// Version is the sender's version. Receivers ignore it, so that peers without a common version can still decline.
	Version uint8
	// Reason is the sender's reason. It may be a number that this version does not know, but it is never zero.
	Reason Reason
}

const declineTLVs = clc.TLVSet(1 << 10)

// encodeDecline encodes d without a MAC.
func encodeDecline(d Decline) []byte {
	b := clc.AppendHeader(nil, TypeDecline, d.Version)
	b = clc.AppendTLV(b, clc.TLVReason, []byte{uint8(d.Reason)})
	return clc.EndMessage(b, 0)
}

// ParseDecline parses a DECLINE at the start of b and returns the number of bytes it consumed.
func ParseDecline(b []byte) (Decline, int, error) {
	var d Decline
	h, err := clc.ReadMessage(TypeDecline, b, declineTLVs, d.set, clc.TLVReason)
	if err != nil {
		return Decline{}, 0, err
	}
	d.Version = h.Version
	return d, h.Len, nil
}

func (d *Decline) set(_ uint16, v []byte) error { return clc.SetReason(&d.Reason, v) }

// Ask is the client's question whether the server has dialled the application. The answer is ACCEPT or DECLINE, which
// may already be in flight.
type Ask struct {
	// Version is the lowest version the client speaks; none has been chosen yet.
	Version uint8
}

// appendAsk appends an ASK without a MAC.
func appendAsk(b []byte, a Ask) []byte {
	start := len(b)
	return clc.EndMessage(clc.AppendHeader(b, TypeAsk, a.Version), start)
}

// parseAsk parses an ASK at the start of b and returns the number of bytes it consumed.
func parseAsk(b []byte) (Ask, int, error) {
	h, err := clc.ReadMessage(TypeAsk, b, 0, func(uint16, []byte) error { return nil })
	if err != nil {
		return Ask{}, 0, err
	}
	return Ask{Version: h.Version}, h.Len, nil
}
