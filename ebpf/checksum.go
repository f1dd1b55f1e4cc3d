package ebpf

import (
	"encoding/binary"
	"fmt"
	"os"
)

// Offsets in headers: RFC 791, RFC 8200, RFC 9293.
const (
	ip4Len        = 20
	ip6Len        = 40
	tcpLen        = 20
	tcpOffset     = 12
	tcpChecksum   = 16
	protocolTCP   = 6
	ip4Protocol   = 9
	ip4Addresses  = 12
	ip6NextHeader = 6
	ip6Addresses  = 8
	versionMask   = 0xf0
	version4      = 0x40
	version6      = 0x60
)

// setChecksum computes the TCP checksum of a raw IP packet in place. The recorded
// SYN left with a checksum the device was to complete.
func setChecksum(pkt []byte) error {
	addrs, seg, err := splitTCP(pkt)
	if err != nil {
		return err
	}
	seg[tcpChecksum], seg[tcpChecksum+1] = 0, 0
	sum := add16(uint32(protocolTCP)+uint32(len(seg)), addrs)
	sum = add16(sum, seg)
	binary.BigEndian.PutUint16(seg[tcpChecksum:], ^fold16(sum))
	return nil
}

// fold16 adds the carries of a sum.
func fold16(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// Our TCP option (docs/PROTOCOL.md "TCP option").
const (
	optionKind = 254
	optionLen  = 10
	optionID   = "SMGW"
	optionEnd  = 0
	optionNOP  = 1
)

// dropOption overwrites our option in a raw IP packet by NOPs: what is given to a
// kernel or sent again is the application's own SYN. The checksum is left to
// setChecksum.
func dropOption(pkt []byte) error {
	_, seg, err := splitTCP(pkt)
	if err != nil {
		return err
	}
	header := int(seg[tcpOffset]>>4) * 4
	if header < tcpLen || header > len(seg) {
		return fmt.Errorf("TCP header of %d bytes: %w", header, os.ErrInvalid)
	}
	for opts := seg[tcpLen:header]; len(opts) > 1 && opts[0] != optionEnd; {
		n := 1
		if opts[0] != optionNOP {
			n = int(opts[1])
		}
		if n < 1 || n > len(opts) || n == 1 && opts[0] != optionNOP {
			return nil // malformed: the kernel stops here too
		}
		if n == optionLen && opts[0] == optionKind && string(opts[2:6]) == optionID {
			for i := range n {
				opts[i] = optionNOP
			}
		}
		opts = opts[n:]
	}
	return nil
}

// splitTCP returns the addresses and the TCP segment of a raw IP packet.
func splitTCP(pkt []byte) (addrs, seg []byte, err error) {
	bad := fmt.Errorf("not a TCP packet: %w", os.ErrInvalid)
	if len(pkt) < ip4Len+tcpLen {
		return nil, nil, bad
	}
	switch pkt[0] & versionMask {
	case version4:
		header := int(pkt[0]&15) * 4
		if header < ip4Len || len(pkt) < header+tcpLen || pkt[ip4Protocol] != protocolTCP {
			return nil, nil, bad
		}
		return pkt[ip4Addresses:ip4Len], pkt[header:], nil
	case version6:
		if len(pkt) < ip6Len+tcpLen || pkt[ip6NextHeader] != protocolTCP {
			return nil, nil, bad
		}
		return pkt[ip6Addresses:ip6Len], pkt[ip6Len:], nil
	default:
		return nil, nil, bad
	}
}

// add16 adds b as big-endian 16-bit words to a partial sum of at most a few
// packets; no overflow is possible at these sizes.
func add16(sum uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}
