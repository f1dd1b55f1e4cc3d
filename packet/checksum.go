package packet

import (
	"encoding/binary"
	"math/bits"
)

// Offsets of the checksums in TCP and UDP headers.
const (
	tcpChecksumAt = 16
	udpChecksumAt = 6
)

// Sum adds b as big-endian 16-bit words to a partial sum, in ones' complement (RFC 1071). An odd last byte counts as
// the high byte of its word, so only the last piece may have one. A checksum is the complement of a sum.
func Sum(b []byte, initial uint16) uint16 {
	// RFC 1071, 2(B): the sum of swapped words is the swapped sum, so words of any size may be added in any byte order.
	sum, carry := uint64(bits.ReverseBytes16(initial)), uint64(0)
	for len(b) >= 64 {
		w := (*[64]byte)(b)
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(w[:]), carry)
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(w[8:]), carry)
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(w[16:]), carry)
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(w[24:]), carry)
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(w[32:]), carry)
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(w[40:]), carry)
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(w[48:]), carry)
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(w[56:]), carry)
		b = b[64:]
	}
	for len(b) >= 8 {
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(b), carry)
		b = b[8:]
	}
	var last uint64
	if len(b) >= 4 {
		last, b = uint64(binary.LittleEndian.Uint32(b)), b[4:]
	}
	if len(b) >= 2 {
		last, b = last+uint64(binary.LittleEndian.Uint16(b)), b[2:]
	}
	if len(b) == 1 {
		last += uint64(b[0])
	}
	sum, carry = bits.Add64(sum, last, carry)
	sum, carry = bits.Add64(sum, carry, 0)
	return bits.ReverseBytes16(fold(sum + carry))
}

// Combine adds two partial sums. The first must cover an even number of bytes.
func Combine(a, b uint16) uint16 { return fold(uint64(a) + uint64(b)) }

// fold adds the carries into a 16-bit sum.
func fold(sum uint64) uint16 {
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	return uint16(sum>>16 + sum)
}

// PseudoSum returns the partial sum of the pseudo header (RFC 9293, 3.1; RFC 8200, 8.1) of n bytes of a protocol after
// a network header.
func PseudoSum(header []byte, proto uint8, n int) uint16 {
	return Sum(addresses(header), fold(uint64(proto)+uint64(n)))
}

// HeaderSumOK verifies the checksum of an IPv4 header; IPv6 has none.
func (p *IP) HeaderSumOK() bool { return p.V6() || Sum(p.Header, 0) == 0xffff }

// TransportSumOK verifies the checksum over the whole Payload of a complete TCP or UDP packet.
func (p *IP) TransportSumOK() bool {
	return Sum(p.Payload, PseudoSum(p.Header, p.Proto, len(p.Payload))) == 0xffff
}

// SetTCPChecksum stores the full TCP checksum (RFC 9293, 3.1) of a raw, complete, unfragmented IP packet. It returns
// ErrTruncated for an incomplete packet, and otherwise the errors of ParseIP and [IP.TCP]. On an error it changes
// nothing.
func SetTCPChecksum(pkt []byte) error {
	p, err := ParseIP(pkt)
	if err != nil {
		return err
	}
	t, err := p.TCP()
	switch {
	case err != nil:
		return err
	case !p.Whole():
		return ErrTruncated
	}
	t.SetChecksum(0)
	t.SetChecksum(^Sum(p.Payload, PseudoSum(p.Header, ProtoTCP, len(p.Payload))))
	return nil
}

// Editor changes fields of the header TCP and updates the checksum incrementally (RFC 1624). The caller sets TCP, calls
// Put16 and Put32, and then Finish once. Until Finish the header has the old checksum.
type Editor struct {
	TCP TCP
	sum uint64 // ~old + new of every changed word
}

// Put32 writes four bytes at any offset in the header.
func (e *Editor) Put32(at int, v uint32) {
	old := binary.BigEndian.Uint32(e.TCP[at:])
	binary.BigEndian.PutUint32(e.TCP[at:], v)
	if at&1 == 1 { // the bytes are in the other half of their words
		old, v = swapPairs(old), swapPairs(v)
	}
	e.sum += uint64(^uint16(old>>16)) + uint64(^uint16(old)) + uint64(v>>16) + uint64(v&0xffff)
}

// Put16 writes two bytes at an even offset in the header.
func (e *Editor) Put16(at int, v uint16) {
	old := binary.BigEndian.Uint16(e.TCP[at:])
	binary.BigEndian.PutUint16(e.TCP[at:], v)
	e.sum += uint64(^old) + uint64(v)
}

func swapPairs(v uint32) uint32 { return v<<8&0xff00ff00 | v>>8&0x00ff00ff }

// Finish writes the updated checksum.
func (e *Editor) Finish() {
	e.TCP.SetChecksum(^fold(e.sum + uint64(^binary.BigEndian.Uint16(e.TCP[tcpChecksumAt:]))))
}
