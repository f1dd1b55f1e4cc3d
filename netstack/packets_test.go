package netstack

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
)

var addrPortZero netip.AddrPort

// segmentOf makes a raw segment from src to dst.
func segmentOf(src, dst netip.AddrPort, seq, ack uint32, flags byte, opts, payload []byte) []byte {
	var ip []byte
	if src.Addr().Is4() {
		ip = make([]byte, minIPv4Header)
		ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, protoTCP
		copy(ip[12:], src.Addr().AsSlice())
		copy(ip[16:], dst.Addr().AsSlice())
	} else {
		ip = make([]byte, ipv6Header)
		ip[0], ip[6], ip[7] = 0x60, protoTCP, 64
		copy(ip[8:], src.Addr().AsSlice())
		copy(ip[24:], dst.Addr().AsSlice())
	}
	t := make([]byte, minTCPHeader)
	binary.BigEndian.PutUint16(t, src.Port())
	binary.BigEndian.PutUint16(t[2:], dst.Port())
	binary.BigEndian.PutUint32(t[4:], seq)
	binary.BigEndian.PutUint32(t[8:], ack)
	t[13] = flags
	binary.BigEndian.PutUint16(t[14:], 64240)
	q := buildTCP(ip, t, opts, payload)
	defer q.DecRef()
	return flatten(q)
}

// synOptions are those of a usual kernel.
func synOptions() []byte {
	return []byte{kindMSS, 4, 5, 180, kindSACKPermit, 2, kindTS, 10, 0, 0, 1, 0, 0, 0, 0, 0, kindNOP, kindWS, 3, 7}
}

func makeSYN(v6 bool, port uint16, isn uint32, role byte) []byte {
	tup := Tuple{Local: netip.AddrPortFrom(client4, port), Remote: serverAddr(v6)}
	if v6 {
		tup.Local = netip.AddrPortFrom(client6, port)
	}
	return makeSYNOf(tup, isn, role)
}

func makeSYNTo(port, to uint16, isn uint32, role byte) []byte {
	return makeSYNOf(Tuple{
		Local: netip.AddrPortFrom(client4, port), Remote: netip.AddrPortFrom(server4, to),
	}, isn, role)
}

func makeSYNOf(tup Tuple, isn uint32, role byte) []byte {
	opts := synOptions()
	if role != 0 {
		opts = appendOption(opts, role, testNonce)
	}
	return segmentOf(tup.Local, tup.Remote, isn, 0, flagSYN, opts, nil)
}

func makeSYNACK(syn []byte, iss uint32, role byte, nonce uint16, ack uint32) []byte {
	p, t, _ := parseTCP(syn)
	tup := outboundKey(p.ip, t).tuple()
	return segmentOf(tup.Remote, tup.Local, iss, ack, flagSYN|flagACK, appendOption(synOptions(), role, nonce), nil)
}

// tooBig makes the ICMP error that quotes pkt.
func tooBig(router netip.Addr, pkt []byte, mtu uint16) []byte {
	p, _ := parseInet(pkt, len(pkt))
	quote := pkt[:min(len(pkt), len(p.ip)+28)]
	icmp := make([]byte, icmpHeader, icmpHeader+len(quote))
	icmp = append(icmp, quote...)
	if p.ip[0]>>4 == 4 {
		icmp[0], icmp[1] = icmpUnreachable, icmpFragNeeded
		binary.BigEndian.PutUint16(icmp[6:], mtu)
		binary.BigEndian.PutUint16(icmp[2:], ^checksum.Checksum(icmp, 0))
		ip := make([]byte, minIPv4Header)
		ip[0], ip[8], ip[9] = 0x45, 64, protoICMP
		copy(ip[12:], router.AsSlice())
		copy(ip[16:], p.ip[12:16])
		setLength(ip, len(icmp))
		return append(ip, icmp...)
	}
	icmp[0] = icmpv6TooBig
	binary.BigEndian.PutUint32(icmp[4:], uint32(mtu))
	ip := make([]byte, ipv6Header)
	ip[0], ip[6], ip[7] = 0x60, protoICMPv6, 64
	copy(ip[8:], router.AsSlice())
	copy(ip[24:], p.ip[8:24])
	setLength(ip, len(icmp))
	var pseudo [8]byte
	binary.BigEndian.PutUint32(pseudo[:], uint32(len(icmp)))
	pseudo[7] = protoICMPv6
	sum := checksum.Checksum(icmp, checksum.Checksum(pseudo[:], checksum.Checksum(ip[8:40], 0)))
	binary.BigEndian.PutUint16(icmp[2:], ^sum)
	return append(ip, icmp...)
}

func makeTuple(port uint16) Tuple {
	return Tuple{Local: netip.AddrPortFrom(client4, port), Remote: serverAddr(false)}
}

func timestamps() []byte {
	return []byte{kindNOP, kindNOP, kindTS, 10, 0, 0, 1, 1, 0, 0, 0, 0}
}
