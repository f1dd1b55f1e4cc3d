package negotiate

import "encoding/binary"

// Neutralise overwrites our option in a raw SYN or SYN-ACK with NOPs and reports whether there was one. The checksum is
// left alone: when the packet's is complete (not offloaded), call RecomputeChecksum.
func Neutralise(pkt []byte) bool {
	s, err := ParseSYN(pkt)
	if err != nil || !s.HasOption() {
		return false
	}
	for i := range OptionLen {
		pkt[s.OptionOffset+i] = kindNOP
	}
	return true
}

// RecomputeChecksum stores the full TCP checksum (RFC 9293, 3.1) of a raw, whole, unfragmented IP packet.
func RecomputeChecksum(pkt []byte) error {
	ip, err := parseIP(pkt)
	if err != nil {
		return err
	}
	if ip.totalLen > len(pkt) || ip.totalLen-ip.headerLen < tcpMinLen {
		return errTCP
	}
	tcp := pkt[ip.headerLen:ip.totalLen]
	binary.BigEndian.PutUint16(tcp[tcpChecksumAt:], 0)
	binary.BigEndian.PutUint16(tcp[tcpChecksumAt:], ^fold(sumWords(pseudoSum(pkt, len(tcp)), tcp)))
	return nil
}

// pseudoSum sums the pseudo-header: addresses, protocol, length.
func pseudoSum(pkt []byte, n int) uint64 {
	sum := uint64(ipProtoTCP) + uint64(n)
	if pkt[0]>>4 == 4 {
		return sumWords(sum, pkt[12:20])
	}
	return sumWords(sum, pkt[8:40])
}

// sumWords adds b as big-endian 16-bit words; a last odd byte counts as the high one.
func sumWords(sum uint64, b []byte) uint64 {
	for len(b) >= 2 {
		sum += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		sum += uint64(b[0]) << 8
	}
	return sum
}

func fold(sum uint64) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
