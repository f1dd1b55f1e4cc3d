package netstack

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	minIPv4Header = 20
	ipv6Header    = 40
	protoICMP     = 1
	protoTCP      = 6
	protoICMPv6   = 58

	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagPSH = 0x08
	flagACK = 0x10

	// maxHeaders is the most an IPv4 and a TCP header can take.
	maxHeaders = 60 + maxTCPHeader
)

// inet is a parsed IP packet: views of its headers and its lengths.
type inet struct {
	ip    []byte // network header
	l4    []byte // what is contiguous of the transport header and beyond
	proto byte
	total int // length of the packet by its own account
}

// parseInet reads the network header in b, the contiguous head of a packet of
// size bytes. Fragments and IPv6 extension headers are refused: nothing of ours
// travels in them.
func parseInet(b []byte, size int) (p inet, ok bool) {
	if len(b) < minIPv4Header {
		return p, false
	}
	switch b[0] >> 4 {
	case 4:
		hlen := int(b[0]&15) * 4
		p.total = int(binary.BigEndian.Uint16(b[2:]))
		if hlen < minIPv4Header || len(b) < hlen || p.total < hlen || binary.BigEndian.Uint16(b[6:])&0x3fff != 0 {
			return p, false
		}
		p.ip, p.l4, p.proto = b[:hlen], b[hlen:], b[9]
	case 6:
		if len(b) < ipv6Header {
			return p, false
		}
		p.total = ipv6Header + int(binary.BigEndian.Uint16(b[4:]))
		p.ip, p.l4, p.proto = b[:ipv6Header], b[ipv6Header:], b[6]
	default:
		return p, false
	}
	if p.total > size {
		return p, false
	}
	p.l4 = p.l4[:min(len(p.l4), p.total-len(p.ip))]
	return p, true
}

// tcpHeader returns the complete TCP header of p.
func (p inet) tcpHeader() (t []byte, ok bool) {
	if p.proto != protoTCP || len(p.l4) < minTCPHeader {
		return nil, false
	}
	n := int(p.l4[12]>>4) * 4
	if n < minTCPHeader || n > len(p.l4) {
		return nil, false
	}
	return p.l4[:n], true
}

func (p inet) network() tcpip.NetworkProtocolNumber { return networkProtocol(p.ip) }

func networkProtocol(ip []byte) tcpip.NetworkProtocolNumber {
	if ip[0]>>4 == 6 {
		return header.IPv6ProtocolNumber
	}
	return header.IPv4ProtocolNumber
}

// pseudoHeader is the checksum of the TCP pseudo header for n bytes.
func pseudoHeader(ip []byte, n int) uint16 {
	src, dst := ip[12:16], ip[16:20]
	if ip[0]>>4 == 6 {
		src, dst = ip[8:24], ip[24:40]
	}
	return header.PseudoHeaderChecksum(header.TCPProtocolNumber, tcpip.AddrFromSlice(src), tcpip.AddrFromSlice(dst), uint16(n))
}

// headerSumOK checks the IPv4 header checksum; IPv6 has none.
func (p inet) headerSumOK() bool {
	return p.ip[0]>>4 == 6 || checksum.Checksum(p.ip, 0) == 0xffff
}

// sumOf adds up TCP pseudo header, header and payload of pkt, of which p is the
// head.
func sumOf(p inet, pkt *stack.PacketBuffer) uint16 {
	hlen := len(p.ip)
	return checksum.Combine(pseudoHeader(p.ip, p.total-hlen), pkt.Data().ChecksumAtOffset(hlen))
}

// tcpSumOK checks the TCP checksum of pkt.
func (p inet) tcpSumOK(pkt *stack.PacketBuffer) bool { return sumOf(p, pkt) == 0xffff }

// parseTCP reads headers of a raw IP packet that must be TCP.
func parseTCP(raw []byte) (p inet, t []byte, ok bool) {
	if p, ok = parseInet(raw, len(raw)); !ok {
		return p, nil, false
	}
	t, ok = p.tcpHeader()
	return p, t, ok
}

func seqOf(t []byte) uint32 { return binary.BigEndian.Uint32(t[4:]) }
func ackOf(t []byte) uint32 { return binary.BigEndian.Uint32(t[8:]) }
func flagsOf(t []byte) byte { return t[13] }

// after reports whether sequence number a is later than b.
func after(a, b uint32) bool { return int32(a-b) > 0 }

// rawBuffer makes an inbound packet buffer of a copy of raw.
func rawBuffer(raw []byte) *stack.PacketBuffer {
	return stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(raw)})
}

// rawBytes copies the packet out of an inbound buffer.
func rawBytes(pkt *stack.PacketBuffer) []byte {
	return pkt.Data().AsRange().ToSlice()
}

// buildTCP makes an outbound packet of a network header, a TCP header without
// options, options (a multiple of four bytes) and a payload; lengths and
// checksums are set, offloads are not needed for it.
func buildTCP(ip, tcp, opts, payload []byte) *stack.PacketBuffer {
	p := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: len(ip) + minTCPHeader + len(opts),
		Payload:            buffer.MakeWithData(payload),
	})
	t := p.TransportHeader().Push(minTCPHeader + len(opts))
	copy(t, tcp[:minTCPHeader])
	copy(t[minTCPHeader:], opts)
	t[12] = byte(len(t)/4) << 4
	n := p.NetworkHeader().Push(len(ip))
	copy(n, ip)
	setLength(n, len(t)+len(payload))
	t[16], t[17] = 0, 0
	sum := checksum.Checksum(payload, checksum.Checksum(t, pseudoHeader(n, len(t)+len(payload))))
	binary.BigEndian.PutUint16(t[16:], ^sum)
	p.NetworkProtocolNumber = networkProtocol(ip)
	p.TransportProtocolNumber = header.TCPProtocolNumber
	return p
}

// setLength writes the length of the packet into its network header.
func setLength(ip []byte, n int) {
	if ip[0]>>4 == 6 {
		binary.BigEndian.PutUint16(ip[4:], uint16(n))
		return
	}
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+n))
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^checksum.Checksum(ip, 0))
}

// buildReset makes the exact reset (RFC 9293 3.10.7.1: SEQ=SEG.ACK) that
// answers the inbound segment with headers ip and t.
func buildReset(ip, t []byte) *stack.PacketBuffer {
	var n []byte
	if ip[0]>>4 == 6 {
		n = make([]byte, ipv6Header)
		n[0], n[6], n[7] = 0x60, protoTCP, 64
		copy(n[8:24], ip[24:40])
		copy(n[24:40], ip[8:24])
	} else {
		n = make([]byte, minIPv4Header)
		n[0], n[6], n[8], n[9] = 0x45, 0x40, 64, protoTCP
		copy(n[12:16], ip[16:20])
		copy(n[16:20], ip[12:16])
	}
	var r [minTCPHeader]byte
	copy(r[0:2], t[2:4])
	copy(r[2:4], t[0:2])
	copy(r[4:8], t[8:12])
	r[13] = flagRST
	return buildTCP(n, r[:], nil, nil)
}
