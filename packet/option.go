package packet

import "encoding/binary"

// The TCP option (docs/PROTOCOL.md "TCP option"): 10 bytes, of the shared experimental kind of RFC 6994 with a 32-bit
// ExID.
const (
	// OptionLen is the length of the option on the wire.
	OptionLen = 10
	// OptionVersion is the only version so far.
	OptionVersion = 1
	// optionExID is "SMGW".
	optionExID uint32 = 0x534D4757
)

// Role is the sender of the option and its purpose. It is in the low four bits of the option's seventh byte.
type Role uint8

// The roles of the option.
const (
	RoleOffer   Role = 1 // on the SYN of an application's socket
	RoleAccept  Role = 2 // on the SYN-ACK of a gateway
	RoleConfirm Role = 3 // on every segment that starts at ISN+1, by the client's gateway
)

// Option is the content of the TCP option.
type Option struct {
	Version uint8 // OptionVersion; four bits on the wire
	Role    Role
	// Flags is sent as zero and ignored when received.
	Flags uint8
	// Nonce pairs the SYN, SYN-ACK, confirm and PROPOSAL of one connection. It is not secret.
	Nonce uint16
}

// AppendOption appends the ten bytes of the option.
func AppendOption(b []byte, o Option) []byte {
	b = append(b, KindExperiment, OptionLen)
	b = binary.BigEndian.AppendUint32(b, optionExID)
	b = append(b, o.Version<<4|uint8(o.Role)&0x0f, o.Flags)
	return binary.BigEndian.AppendUint16(b, o.Nonce)
}

// Ours reports whether an option is ours by its kind, length and ExID, whatever its version and role.
func (o TCPOption) Ours() bool {
	return len(o) == OptionLen && o[0] == KindExperiment && binary.BigEndian.Uint32(o[2:]) == optionExID
}

func decodeOption(b TCPOption) (Option, bool) {
	if !b.Ours() {
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

// StripOption overwrites our option, of any version, in a raw TCP packet by NOPs, and reports whether there was one. It
// does not update the checksum: if the packet's is complete (not offloaded), call SetTCPChecksum.
func StripOption(pkt []byte) (stripped bool, err error) {
	p, err := ParseIP(pkt)
	if err != nil {
		return false, err
	}
	t, err := p.TCP()
	if err != nil {
		return false, err
	}
	for _, o := range t.Options().All() {
		if o.Ours() {
			o.blank()
			stripped = true
		}
	}
	return stripped, nil
}
