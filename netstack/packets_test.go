package netstack

import (
	"encoding/binary"
	"net/netip"

	"github.com/smcgw/smcgw/packet"
)

// segmentOf makes a raw segment from src to dst.
func segmentOf(src, dst netip.AddrPort, seq, ack uint32, flags byte, opts, payload []byte) []byte {
	return packet.Segment{
		Src: src, Dst: dst, Seq: seq, Ack: ack, Flags: flags, Window: 64240, Options: opts, Payload: payload,
	}.Append(nil)
}

// synOptions are those of a usual kernel.
func synOptions() []byte {
	return []byte{packet.KindMSS, 4, 5, 180, packet.KindSACKPermitted, 2, packet.KindTimestamps, 10, 0, 0, 1, 0, 0, 0, 0, 0, packet.KindNOP, packet.KindWindowScale, 3, 7}
}

func makeSYN(v6 bool, port uint16, isn uint32, role packet.Role) []byte {
	tup := Tuple{Local: netip.AddrPortFrom(client4, port), Remote: serverAddr(v6)}
	if v6 {
		tup.Local = netip.AddrPortFrom(client6, port)
	}
	return makeSYNOf(tup, isn, role)
}

func makeSYNTo(port, to uint16, isn uint32, role packet.Role) []byte {
	return makeSYNOf(Tuple{
		Local: netip.AddrPortFrom(client4, port), Remote: netip.AddrPortFrom(server4, to),
	}, isn, role)
}

func makeSYNOf(tup Tuple, isn uint32, role packet.Role) []byte {
	opts := synOptions()
	if role != 0 {
		opts = appendOption(opts, role, testNonce)
	}
	return segmentOf(tup.Local, tup.Remote, isn, 0, packet.FlagSYN, opts, nil)
}

func makeSYNACK(syn []byte, iss uint32, role packet.Role, nonce uint16, ack uint32) []byte {
	p, t, _ := parseTCP(syn)
	tup := outboundKey(p.Header, t).tuple()
	return segmentOf(tup.Remote, tup.Local, iss, ack, packet.FlagSYN|packet.FlagACK, appendOption(synOptions(), role, nonce), nil)
}

// tooBig makes the ICMP error that quotes pkt.
func tooBig(router netip.Addr, pkt []byte, mtu uint16) []byte {
	p, _ := parseIP(pkt, len(pkt))
	quote := pkt[:min(len(pkt), len(p.Header)+28)]
	h := packet.Header{Src: router, Dst: p.Src(), Proto: packet.ProtoICMP, TTL: 64}
	ip := make([]byte, h.Len())
	msg := append(make([]byte, icmpHeaderLen), quote...)
	pseudo := uint16(0)
	if p.V6() {
		h.Proto = packet.ProtoICMPv6
		msg[0] = icmpV6TooBig
		binary.BigEndian.PutUint32(msg[4:], uint32(mtu))
	} else {
		msg[0], msg[1] = icmpUnreachable, icmpFragNeeded
		binary.BigEndian.PutUint16(msg[6:], mtu)
	}
	h.Put(ip, len(msg))
	if p.V6() {
		pseudo = packet.PseudoSum(ip, h.Proto, len(msg))
	}
	binary.BigEndian.PutUint16(msg[2:], ^packet.Sum(msg, pseudo))
	return append(ip, msg...)
}

func makeTuple(port uint16) Tuple {
	return Tuple{Local: netip.AddrPortFrom(client4, port), Remote: serverAddr(false)}
}

func timestamps() []byte {
	return []byte{packet.KindNOP, packet.KindNOP, packet.KindTimestamps, 10, 0, 0, 1, 1, 0, 0, 0, 0}
}
