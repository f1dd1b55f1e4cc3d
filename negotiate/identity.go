package negotiate

import "encoding/binary"

// The TLVs PROPOSAL and ACCEPT share: who the sender is.

func appendIdentity(b []byte, gateway, host [16]byte, dgramPort uint16) []byte {
	b = appendTLV(b, tlvGatewayID, gateway[:])
	if host != ([16]byte{}) {
		b = appendTLV(b, tlvHostID, host[:])
	}
	if dgramPort != 0 {
		b = appendTLV(b, tlvDgramPort, binary.BigEndian.AppendUint16(nil, dgramPort))
	}
	return b
}

func identityLen(host [16]byte, dgramPort uint16) int {
	n := tlvHeaderLen + 16
	if host != ([16]byte{}) {
		n += tlvHeaderLen + 16
	}
	if dgramPort != 0 {
		n += tlvHeaderLen + 2
	}
	return n
}

func appendRandom(b []byte, random [16]byte) []byte {
	if random == ([16]byte{}) {
		return b
	}
	return appendTLV(b, tlvRandom, random[:])
}

func randomLen(random [16]byte) int {
	if random == ([16]byte{}) {
		return 0
	}
	return tlvHeaderLen + 16
}

func setIdentity(typ uint16, v []byte, gateway, host *[16]byte, dgramPort *uint16) error {
	switch typ {
	case tlvGatewayID:
		return setID(gateway, v)
	case tlvHostID:
		return setID(host, v)
	case tlvDgramPort:
		return setUint16(dgramPort, v)
	}
	return nil
}

func setID(id *[16]byte, v []byte) error {
	if err := want(v, 16); err != nil {
		return err
	}
	copy(id[:], v)
	return nil
}

func setUint16(n *uint16, v []byte) error {
	if err := want(v, 2); err != nil {
		return err
	}
	*n = binary.BigEndian.Uint16(v)
	return nil
}
