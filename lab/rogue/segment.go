package rogue

import (
	"encoding/binary"
	"net/netip"

	"github.com/smcgw/smcgw/negotiate"
)

// Flags of a TCP header.
const (
	flagFIN = 1 << 0
	flagSYN = 1 << 1
	flagRST = 1 << 2
	flagPSH = 1 << 3
	flagACK = 1 << 4
)

const (
	ipMin       = 20
	tcpMin      = 20
	windowScale = 10
)

// segment is a TCP segment over IPv4.
type segment struct {
	seq, ack uint32
	flags    uint8
	options  []byte
	payload  []byte
}

// synOptions are those of a Linux client, with the offer.
func synOptions(ts uint32, nonce uint16) []byte {
	b := []byte{2, 4, 0x05, 0xb4, 4, 2, 8, 10}
	b = binary.BigEndian.AppendUint32(b, ts)
	b = append(b, 0, 0, 0, 0, 1, 3, 3, windowScale)
	return append(negotiate.AppendOption(b, option(negotiate.RoleOffer, nonce)), 1, 1)
}

func option(r negotiate.Role, nonce uint16) negotiate.Option {
	return negotiate.Option{Version: negotiate.OptionVersion, Role: r, Nonce: nonce}
}

// timestamps are the options of every other segment.
func timestamps(ts, echo uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte{1, 1, 8, 10}, ts)
	return binary.BigEndian.AppendUint32(b, echo)
}

// append makes the bytes behind the IP header.
func (s segment) append(b []byte, from, to netip.AddrPort) []byte {
	at := len(b)
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint32(b, s.seq)
	b = binary.BigEndian.AppendUint32(b, s.ack)
	b = append(b, byte((tcpMin+len(s.options))/4)<<4, s.flags, 0xff, 0xff, 0, 0, 0, 0)
	b = append(append(b, s.options...), s.payload...)
	binary.BigEndian.PutUint16(b[at+16:], checksum(from.Addr(), to.Addr(), b[at:]))
	return b
}

func checksum(from, to netip.Addr, t []byte) uint16 {
	sum := uint32(6 + len(t))
	add := func(b []byte) {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(b[0])<<8 | uint32(b[1])
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	add(from.AsSlice())
	add(to.AsSlice())
	add(t)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// split reads what a raw socket gives; false for what is not of the connection.
func split(pkt []byte, from, to netip.AddrPort) (s segment, ok bool) {
	if len(pkt) < ipMin || pkt[0]>>4 != 4 {
		return s, false
	}
	n := int(pkt[0]&15) * 4
	if len(pkt) < n+tcpMin {
		return s, false
	}
	t := pkt[n:]
	head := int(t[12]>>4) * 4
	if head < tcpMin || head > len(t) ||
		binary.BigEndian.Uint16(t) != from.Port() || binary.BigEndian.Uint16(t[2:]) != to.Port() {
		return s, false
	}
	return segment{
		seq: binary.BigEndian.Uint32(t[4:]), ack: binary.BigEndian.Uint32(t[8:]), flags: t[13],
		options: t[tcpMin:head], payload: t[head:],
	}, true
}

// stamp is the timestamp of the other side.
func (s segment) stamp() (ts uint32, ok bool) {
	for b := s.options; len(b) > 0; {
		switch {
		case b[0] == 0:
			return 0, false
		case b[0] == 1:
			b = b[1:]
			continue
		case len(b) < 2 || b[1] < 2 || int(b[1]) > len(b):
			return 0, false
		case b[0] == 8 && b[1] == 10:
			return binary.BigEndian.Uint32(b[2:]), true
		}
		b = b[b[1]:]
	}
	return 0, false
}
