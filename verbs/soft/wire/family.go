package wire

import (
	"encoding/binary"
	"hash/crc32"
	"sync"
)

// family holds what the ICRCs of all IPv4 or all IPv6 flows have in common: how fields that are zero in the state of a
// flow's headers change the CRC.
type family struct {
	// lengths is indexed by the bytes of the UDP payload.
	lengths [MaxLen + 1]struct {
		state uint32 // contribution of the lengths in the IP and UDP headers, after the UDP header
		back  uint32 // factor that steps a register back from the ICRC to the identification
	}
	// idHigh and idLow are the contributions of the identification's bytes after the UDP header. Zeros for IPv6.
	idHigh, idLow [256]uint32
	// train holds the contributions of the first identifications after the BTH.
	train [64]uint32
	// bth holds the contributions of each byte of the BTH to the register after it: twelve independent look-ups, where
	// each step of a loop over bytes would wait for the one before.
	bth [BTHLen][256]uint32
	// id is the mask of the register bits that the identification sets, at its position. Zero for IPv6.
	id uint32
}

// idToPayload is the number of bytes from the IPv4 identification to the UDP payload. The tables of IPv6 step back as
// far, without meaning.
const idToPayload = ipv4Len - 4 + udpLen

// bthMasked is the byte of the BTH that the ICRC takes as ones: FECN, BECN and
// six reserved bits.
const bthMasked = 4

var ipv4 = sync.OnceValue(func() *family {
	header := func(total, id, udp uint16) uint32 {
		b := coverIPv4(total, id, udp)
		return checksum(b[:])
	}
	zero := header(0, 0, 0)
	f := newFamily()
	f.id = 0xffff
	for i := range uint16(256) {
		f.idHigh[i] = zero ^ header(0, i<<8, 0)
		f.idLow[i] = zero ^ header(0, i, 0)
	}
	for i := range f.train {
		f.train[i] = f.idAfterBTH(uint16(i))
	}
	for n := range uint16(len(f.lengths)) {
		f.lengths[n].state = zero ^ header(ipv4Len+udpLen+n, 0, udpLen+n)
	}
	return f
})

var ipv6 = sync.OnceValue(func() *family {
	header := func(length uint16) uint32 {
		b := coverIPv6(length)
		return checksum(b[:])
	}
	f := newFamily()
	for n := range uint16(len(f.lengths)) {
		f.lengths[n].state = header(0) ^ header(udpLen+n)
	}
	return f
})

// newFamily computes what does not depend on the IP header.
func newFamily() *family {
	f := new(family)
	back := one
	for range idToPayload {
		back = stepBack(back)
	}
	for n := range len(f.lengths) - ICRCLen {
		f.lengths[n+ICRCLen].back = back
		back = stepBack(back)
	}
	for i := BTHLen - 1; i >= 0; i-- {
		for b := range f.bth[i] {
			if i == BTHLen-1 {
				f.bth[i][b] = crc32.IEEETable[b]
			} else {
				f.bth[i][b] = step(f.bth[i+1][b])
			}
		}
	}
	return f
}

// afterBTH returns the state after the BTH at the beginning of b, whose masked byte counts as ones.
func (f *family) afterBTH(state uint32, b []byte) uint32 {
	b = b[:BTHLen:BTHLen]
	s := ^state ^ binary.LittleEndian.Uint32(b)
	t := &f.bth
	return ^(t[0][byte(s)] ^ t[1][byte(s>>8)] ^ t[2][byte(s>>16)] ^ t[3][s>>24] ^
		t[bthMasked][0xff] ^ t[5][b[5]] ^ t[6][b[6]] ^ t[7][b[7]] ^
		t[8][b[8]] ^ t[9][b[9]] ^ t[10][b[10]] ^ t[11][b[11]])
}
