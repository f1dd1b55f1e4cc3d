package negotiate

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Proposal is the client's first message: who it is and which queue pairs it has made for this connection.
type Proposal struct {
	// Nonce is the nonce of the option on the SYN. It is always the first TLV (Guard relies on it).
	Nonce uint16
	// MinVersion and MaxVersion are what the client speaks.
	MinVersion, MaxVersion uint8
	// GatewayID identifies the client's gateway: random per start.
	GatewayID [16]byte
	// HostID identifies the client's kernel (an HMAC of the boot id); zero if the sender does not say.
	HostID [16]byte
	// DatagramPort is the UDP port for datagram resolution between gateways, 0 for none.
	DatagramPort uint16
	// Budget is how long after sending this message the client still reads ACCEPT; milliseconds on the wire, rounded up.
	Budget time.Duration
	// Random is fresh in every message that is authenticated, so that no two handshakes have the same chain; zero: none.
	Random [16]byte
	// Carriers in the client's order of preference, at most MaxCarriers, one per kind.
	Carriers []CarrierOffer
}

const proposalTLVs = tlvSet(1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<17 | 1<<19)

// AppendProposal appends the message without a MAC.
func AppendProposal(b []byte, p *Proposal) []byte {
	start := len(b)
	b = appendHeader(b, TypeProposal, p.MinVersion)
	b = appendTLV(b, tlvNonce, binary.BigEndian.AppendUint16(nil, p.Nonce))
	b = appendTLV(b, tlvVersions, []byte{p.MinVersion, p.MaxVersion})
	b = appendTLV(b, tlvBudget, binary.BigEndian.AppendUint32(nil, budgetMillis(p.Budget)))
	b = appendIdentity(b, p.GatewayID, p.HostID, p.DatagramPort)
	b = appendRandom(b, p.Random)
	for i := range p.Carriers {
		b = appendCarrier(b, &p.Carriers[i])
	}
	return endMessage(b, start)
}

// Len returns the length AppendProposal adds.
func (p *Proposal) Len() int {
	n := HeaderLen + (tlvHeaderLen + 2) + (tlvHeaderLen + 2) + (tlvHeaderLen + 4)
	return n + identityLen(p.HostID, p.DatagramPort) + randomLen(p.Random) + carriersLen(p.Carriers)
}

// ParseProposal reads a PROPOSAL at the start of b and returns the number of bytes it took.
func ParseProposal(b []byte) (Proposal, int, error) {
	h, tlvs, err := message(b, TypeProposal)
	if err != nil {
		return Proposal{}, 0, err
	}
	if len(tlvs) < tlvHeaderLen || binary.BigEndian.Uint16(tlvs) != tlvNonce {
		return Proposal{}, 0, fmt.Errorf("clc proposal not starting with the nonce: %w", ErrMalformed)
	}
	var p Proposal
	seen, err := walkTLVs(tlvs, proposalTLVs, p.set)
	if err != nil {
		return Proposal{}, 0, err
	}
	if !seen.has(tlvVersions, tlvGatewayID, tlvBudget) {
		return Proposal{}, 0, missing(TypeProposal)
	}
	return p, h.Len, nil
}

func (p *Proposal) set(typ uint16, v []byte) error {
	switch typ {
	case tlvNonce:
		return setUint16(&p.Nonce, v)
	case tlvVersions:
		return setVersions(v, &p.MinVersion, &p.MaxVersion)
	case tlvBudget:
		if err := want(v, 4); err != nil {
			return err
		}
		p.Budget = time.Duration(binary.BigEndian.Uint32(v)) * time.Millisecond
		return nil
	case tlvRandom:
		return setID(&p.Random, v)
	case tlvCarrier:
		return addCarrier(&p.Carriers, v)
	case tlvPartition:
		return setPartition(p.Carriers, v)
	}
	return setIdentity(typ, v, &p.GatewayID, &p.HostID, &p.DatagramPort)
}

func setVersions(v []byte, lowest, highest *uint8) error {
	if err := want(v, 2); err != nil {
		return err
	}
	*lowest, *highest = v[0], v[1]
	if *lowest > *highest {
		return fmt.Errorf("versions %d to %d: %w", v[0], v[1], ErrMalformed)
	}
	return nil
}

// budgetMillis rounds up: a client that has 1.5 ms must not be taken for one that has 1.
func budgetMillis(d time.Duration) uint32 {
	ms := (max(d, 0) + time.Millisecond - 1) / time.Millisecond
	return uint32(min(ms, 1<<32-1))
}
