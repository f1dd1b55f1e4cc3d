package negotiate

import "fmt"

// Accept is the server's consent: its application is connected, its memory reserved, its queue pairs are ready to echo.
type Accept struct {
	// Version is the version both speak from here on; it travels in the header.
	Version uint8
	// GatewayID identifies the server's gateway.
	GatewayID [16]byte
	// HostID identifies the server's kernel; zero if it does not say.
	HostID [16]byte
	// DatagramPort is the UDP port for datagram resolution, 0 for none.
	DatagramPort uint16
	// Random is fresh in every message that is authenticated, so that no two handshakes have the same chain; zero: none.
	Random [16]byte
	// Carriers is what the server can do of what was offered, in the order the client should try them: 1 to MaxCarriers.
	Carriers []CarrierOffer
}

const acceptTLVs = tlvSet(1<<3 | 1<<4 | 1<<5 | 1<<7 | 1<<17 | 1<<19)

// AppendAccept appends the message without a MAC.
func AppendAccept(b []byte, a *Accept) []byte {
	start := len(b)
	b = appendHeader(b, TypeAccept, a.Version)
	b = appendIdentity(b, a.GatewayID, a.HostID, a.DatagramPort)
	b = appendRandom(b, a.Random)
	for i := range a.Carriers {
		b = appendCarrier(b, &a.Carriers[i])
	}
	return endMessage(b, start)
}

// Len returns the length AppendAccept adds.
func (a *Accept) Len() int {
	return HeaderLen + identityLen(a.HostID, a.DatagramPort) + randomLen(a.Random) + carriersLen(a.Carriers)
}

// ParseAccept reads an ACCEPT at the start of b and returns the number of bytes it took.
func ParseAccept(b []byte) (Accept, int, error) {
	h, tlvs, err := message(b, TypeAccept)
	if err != nil {
		return Accept{}, 0, err
	}
	a := Accept{Version: h.Version}
	seen, err := walkTLVs(tlvs, acceptTLVs, a.set)
	if err != nil {
		return Accept{}, 0, err
	}
	if !seen.has(tlvGatewayID) {
		return Accept{}, 0, missing(TypeAccept)
	}
	if len(a.Carriers) == 0 {
		return Accept{}, 0, fmt.Errorf("clc accept without a known carrier: %w", ErrMalformed)
	}
	return a, h.Len, nil
}

func (a *Accept) set(typ uint16, v []byte) error {
	switch typ {
	case tlvRandom:
		return setID(&a.Random, v)
	case tlvCarrier:
		return addCarrier(&a.Carriers, v)
	case tlvPartition:
		return setPartition(a.Carriers, v)
	}
	return setIdentity(typ, v, &a.GatewayID, &a.HostID, &a.DatagramPort)
}
