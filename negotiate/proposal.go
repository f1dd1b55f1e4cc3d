package negotiate

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

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
	seen, err := clc.WalkTLVs(tlvs, proposalTLVs, p.set)
	if err != nil {
		return Proposal{}, 0, err
	}
	if !seen.Has(clc.TLVVersions, clc.TLVGatewayID, clc.TLVBudget) {
		return Proposal{}, 0, clc.Missing(TypeProposal)
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
