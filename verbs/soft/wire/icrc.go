package wire

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
	"net/netip"
)

// Flow is what the ICRC covers of the headers below the BTH. The addresses are
// of one family; IPv4 addresses mapped into IPv6 count as IPv4.
type Flow struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
}

// ICRC is the invariant CRC of one flow (IBTA vol. 1, chapter 7 and annex A17):
// the CRC-32 of Ethernet over 8 bytes of ones in place of the LRH, the IP and
// UDP headers and everything up to the ICRC, with ones in place of what changes
// on the way. It does not change after NewICRC; any number of goroutines may
// use it.
//
// What a state is: the CRC of what came so far, as crc32.Update takes it. A CRC
// is affine, so the fields that differ from datagram to datagram are XORed into
// the state of the flow's headers, where they have been zero.
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

// NewICRC prepares the ICRC of a flow, in one direction. It is cheap enough to
// be called for a datagram of an unknown host.
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

// checksum is the CRC of headers. Other than the hash package's, which calls
// through a variable, it leaves b on the stack of the caller.
func checksum(b []byte) uint32 {
	s, table := ^uint32(0), crc32.IEEETable
	for _, x := range b {
		s = table[byte(s)^x] ^ s>>8
	}
	return ^s
}

// coverIPv4 is what is covered up to the BTH, without addresses and ports.
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

// coverIPv6 is the same for IPv6, where the length of the payload is that of UDP.
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

// Begin is the state after the BTH and the extension headers hdr, as Append
// wrote them, of a datagram with the IPv4 identification id, which is ignored
// for IPv6, and a UDP payload of n bytes: headers, payload, padding and ICRC, at
// most MaxLen.
func (c *ICRC) Begin(id uint16, n int, hdr []byte) uint32 {
	f := c.family
	state := c.state ^ f.lengths[n].state ^ f.idHigh[id>>8] ^ f.idLow[id&0xff]
	if hdr[bthMasked] == 0 && len(hdr) <= MaxHeaderLen {
		return Update(f.afterBTH(state, hdr), hdr[BTHLen:]) ^ f.unmasked[len(hdr)]
	}
	state = Update(state, hdr[:bthMasked])
	state = ^step(^state ^ 0xff)
	return Update(state, hdr[bthMasked+1:])
}

// Finish is the ICRC, as a number of the little-endian bytes on the wire.
func Finish(state uint32) uint32 { return state }

// AppendICRC appends the ICRC as it goes on the wire.
func AppendICRC(b []byte, state uint32) []byte {
	return binary.LittleEndian.AppendUint32(b, Finish(state))
}

// Verify checks the ICRC of a received UDP payload. For IPv4 it accepts if some
// identification explains the ICRC, and says which; see the package comment for
// what that is worth. Datagrams longer than MaxLen fail.
//
// The payload goes through the CRC as it is. What that differs in from the ICRC
// is due to the byte of the BTH that is masked, to the identification, or to
// damage. Stepped back to where the identification begins, the first is one of
// 256 constants and the second is the identification itself.
func (c *ICRC) Verify(datagram []byte) (id uint16, ok bool) {
	n := len(datagram)
	if n < MinLen || n > MaxLen {
		return 0, false
	}
	return c.explain(c.difference(datagram), n, datagram[bthMasked])
}

// VerifyWith is Verify for one goroutine that has many of the same kind to verify.
func (c *ICRC) VerifyWith(m *Memo, datagram []byte) (id uint16, ok bool) {
	n := len(datagram)
	if n < MinLen || n > MaxLen {
		return 0, false
	}
	diff, masked := c.difference(datagram), datagram[bthMasked]
	s := &m.seen[m.slot(diff)]
	if s.family == c.family && s.diff == diff && int(s.length) == n && s.masked == masked {
		return s.id, true
	}
	if id, ok = c.explain(diff, n, masked); ok {
		s.family, s.diff, s.length, s.id, s.masked = c.family, diff, uint16(n), id, masked
	}
	return id, ok
}

// difference is what the CRC of a datagram as it is differs by from its ICRC.
func (c *ICRC) difference(datagram []byte) uint32 {
	n := len(datagram)
	state := c.family.afterBTH(c.state^c.family.lengths[n].state, datagram)
	return Update(state, datagram[BTHLen:n-ICRCLen]) ^ binary.LittleEndian.Uint32(datagram[n-ICRCLen:])
}

// explain finds the identification that a difference is due to.
func (c *ICRC) explain(diff uint32, n int, masked byte) (id uint16, ok bool) {
	diff = multiply(diff, c.family.lengths[n].back) ^ c.family.masked[masked]
	if diff&^c.family.id != 0 {
		return 0, false
	}
	return bits.ReverseBytes16(uint16(diff)), true
}
