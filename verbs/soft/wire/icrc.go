package wire

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
	"net/netip"
)

// Flow is the part of the headers below the BTH that the ICRC covers. The addresses must be of one family; IPv4-mapped
// IPv6 addresses count as IPv4.
type Flow struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
}

// ICRC computes the invariant CRC of one flow (IBTA vol. 1, chapter 7 and annex A17): the CRC-32 of Ethernet over 8
// bytes of ones in place of the LRH, the IP and UDP headers and everything up to the ICRC, with ones in place of fields
// that change in transit. It is immutable after NewICRC; any number of goroutines may use it.
//
// A state is the CRC of the bytes so far, as crc32.Update takes it. A CRC is affine, so fields that differ between
// datagrams are XORed into the state of the flow's headers, in which they are zero.
type ICRC struct {
	state  uint32 // after the UDP header, lengths and identification 0
	family *family
}

// Offsets in the covered bytes.
const (
	lrhLen  = 8
	udpLen  = 8
	ipv4Len = 20
	ipv6Len = 40
)

// NewICRC prepares the ICRC of a flow, in one direction. It is cheap enough to be called for each datagram of an
// unknown host.
func NewICRC(f Flow) ICRC {
	src, dst := f.Src.Unmap(), f.Dst.Unmap()
	if src.Is4() && dst.Is4() {
		b := coverIPv4(0, 0, 0)
		s, d := src.As4(), dst.As4()
		copy(b[lrhLen+12:], s[:])
		copy(b[lrhLen+16:], d[:])
		coverPorts(b[lrhLen+ipv4Len:], f)
		return ICRC{checksum(b[:]), ipv4()}
	}
	b := coverIPv6(0)
	s, d := src.As16(), dst.As16()
	copy(b[lrhLen+8:], s[:])
	copy(b[lrhLen+24:], d[:])
	coverPorts(b[lrhLen+ipv6Len:], f)
	return ICRC{checksum(b[:]), ipv6()}
}

// checksum returns the CRC of headers. Unlike that of the hash package, which is called through a variable, it lets b
// stay on the caller's stack.
func checksum(b []byte) uint32 {
	s, table := ^uint32(0), crc32.IEEETable
	for _, x := range b {
		s = table[byte(s)^x] ^ s>>8
	}
	return ^s
}

// coverIPv4 returns the covered bytes before the BTH, without addresses and ports.
func coverIPv4(total, id, udp uint16) (b [lrhLen + ipv4Len + udpLen]byte) {
	be := binary.BigEndian
	be.PutUint64(b[:], ^uint64(0))
	h := b[lrhLen:]
	h[0] = 0x45
	h[1] = 0xff // type of service
	be.PutUint16(h[2:], total)
	be.PutUint16(h[4:], id)
	be.PutUint16(h[6:], 0x4000) // DF
	h[8] = 0xff                 // time to live
	h[9] = 17
	be.PutUint16(h[10:], 0xffff) // checksum
	be.PutUint16(h[ipv4Len+4:], udp)
	be.PutUint16(h[ipv4Len+6:], 0xffff) // checksum
	return b
}

// coverIPv6 does the same for IPv6, where the payload length is that of UDP.
func coverIPv6(length uint16) (b [lrhLen + ipv6Len + udpLen]byte) {
	be := binary.BigEndian
	be.PutUint64(b[:], ^uint64(0))
	h := b[lrhLen:]
	be.PutUint32(h, 0x6fffffff) // traffic class and flow label
	be.PutUint16(h[4:], length)
	h[6] = 17
	h[7] = 0xff // hop limit
	be.PutUint16(h[ipv6Len+4:], length)
	be.PutUint16(h[ipv6Len+6:], 0xffff) // checksum
	return b
}

func coverPorts(udp []byte, f Flow) {
	binary.BigEndian.PutUint16(udp, f.SrcPort)
	binary.BigEndian.PutUint16(udp[2:], f.DstPort)
}

// Begin returns the state after hdr: the BTH, the extension headers, as encoded by Append, and any payload that follows.
// id is the IPv4 identification, ignored for IPv6; n is the size of the UDP payload with headers, payload, padding and
// ICRC, at most MaxLen.
func (c *ICRC) Begin(id uint16, n int, hdr []byte) uint32 {
	f := c.family
	state := c.state ^ f.lengths[n].state ^ f.idHigh[id>>8] ^ f.idLow[id&0xff]
	return Update(f.afterBTH(state, hdr), hdr[BTHLen:])
}

// Finish returns the ICRC, which is little-endian on the wire.
func Finish(state uint32) uint32 { return state }

// AppendICRC appends the ICRC in wire format.
func AppendICRC(b []byte, state uint32) []byte {
	return binary.LittleEndian.AppendUint32(b, Finish(state))
}

// Verify checks the ICRC of a received UDP payload. For IPv4 it accepts the payload if some identification explains the
// ICRC, and returns that; see the package comment for how strong that check is. It is fastest if the identification is
// the expected one. Datagrams longer than MaxLen fail.
//
// A wrong identification changes the CRC. Stepped back to the position of the identification, the difference is that of
// the two identifications; damage is anything else.
func (c *ICRC) Verify(expected uint16, datagram []byte) (id uint16, ok bool) {
	n := len(datagram)
	if n < MinLen || n > MaxLen {
		return 0, false
	}
	f, body := c.family, n-ICRCLen
	diff := c.Begin(expected, n, datagram[:body]) ^ binary.LittleEndian.Uint32(datagram[body:])
	if diff == 0 {
		return expected, true
	}
	diff = multiply(diff, f.lengths[n].back)
	if diff&^f.id != 0 {
		return 0, false
	}
	return expected ^ bits.ReverseBytes16(uint16(diff)), true
}
