package negotiate

import (
	"fmt"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

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
	h, tlvs, err := clc.Message(b, TypeAccept)
	if err != nil {
		return Accept{}, 0, err
	}
	a := Accept{Version: h.Version}
	seen, err := clc.WalkTLVs(tlvs, acceptTLVs, a.set)
	if err != nil {
		return Accept{}, 0, err
	}
	if !seen.Has(clc.TLVGatewayID) {
		return Accept{}, 0, clc.Missing(TypeAccept)
	}
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
