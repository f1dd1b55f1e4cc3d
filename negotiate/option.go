package negotiate

import (
	"encoding/binary"
	"errors"
)

// The TCP option (docs/PROTOCOL.md "TCP option"): 10 bytes, shared experiments kind of RFC 6994 with a 32-bit ExID.
const (
	// OptionLen is the length of the option on the wire.
	OptionLen = 10
	// OptionVersion is the only version.
	OptionVersion = 1
	// OptionExID is "SMGW".
	OptionExID uint32 = 0x534D4757

	optionKind = 254 // RFC 4727, RFC 6994
	kindEOL    = 0
	kindNOP    = 1
)

// ErrNoOption says that an options area does not hold our option.
var ErrNoOption = errors.New("no smcgw tcp option")

// Role says who speaks: it is in the low four bits of the option's seventh byte.
type Role uint8

// The roles of the option.
const (
	RoleOffer   Role = 1 // on the SYN of an application's socket
	RoleAccept  Role = 2 // on the SYN-ACK of a gateway
	RoleConfirm Role = 3 // on every segment that starts at ISN+1, by the client's gateway
)

// String returns the role's name.
func (r Role) String() string {
	switch r {
	case RoleOffer:
		return "offer"
	case RoleAccept:
		return "accept"
	case RoleConfirm:
		return "confirm"
	}
	return "unknown"
}

// Option is the content of the TCP option.
type Option struct {
	Version uint8
	Role    Role
	// Flags is sent as zero and ignored when received.
	Flags uint8
	// Nonce pairs SYN, SYN-ACK, confirm and PROPOSAL of one connection. It is no secret.
	Nonce uint16
}

// AppendOption appends the ten bytes of the option.
func AppendOption(b []byte, o Option) []byte {
	b = append(b, optionKind, OptionLen)
	b = binary.BigEndian.AppendUint32(b, OptionExID)
	b = append(b, o.Version<<4|uint8(o.Role)&0x0f, o.Flags)
	return binary.BigEndian.AppendUint16(b, o.Nonce)
}

// ParseOption finds our option in the options area of a TCP header (the bytes after the first twenty) and returns it
// with its offset there. An unknown version or role, and an area whose lengths do not add up before the option, are no
// option: ErrNoOption.
func ParseOption(area []byte) (Option, int, error) {
	for i := 0; i < len(area); {
		kind, n, ok := nextOption(area[i:])
		if !ok {
			return Option{}, 0, ErrNoOption
		}
		if kind == optionKind {
			if o, ok := decodeOption(area[i : i+n]); ok {
				return o, i, nil
			}
		}
		i += n
	}
	return Option{}, 0, ErrNoOption
}

// nextOption returns the kind and length of the TCP option at the start of b; false at the end of the list or where it
// is broken (RFC 9293, 3.1).
func nextOption(b []byte) (kind uint8, n int, ok bool) {
	switch {
	case len(b) == 0 || b[0] == kindEOL:
		return kindEOL, 0, false
	case b[0] == kindNOP:
		return kindNOP, 1, true
	case len(b) < 2 || b[1] < 2 || int(b[1]) > len(b):
		return b[0], 0, false
	}
	return b[0], int(b[1]), true
}

func decodeOption(b []byte) (Option, bool) {
	if len(b) != OptionLen || binary.BigEndian.Uint32(b[2:]) != OptionExID {
		return Option{}, false
	}
	o := Option{
		Version: b[6] >> 4,
		Role:    Role(b[6] & 0x0f),
		Flags:   b[7],
		Nonce:   binary.BigEndian.Uint16(b[8:]),
	}
	known := o.Version == OptionVersion && o.Role >= RoleOffer && o.Role <= RoleConfirm
	return o, known
}
