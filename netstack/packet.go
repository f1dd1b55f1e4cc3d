package netstack

import (
	"fmt"
	"net/netip"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/smcgw/smcgw/netstack/link"
	"github.com/smcgw/smcgw/packet"
)

// maxHeaders is the largest size of an IPv4 and a TCP header together.
const maxHeaders = packet.IPv4MaxLen + packet.TCPMaxLen

// parseIP parses the network header in b, the contiguous head of a packet of size bytes. It refuses fragments and IPv6
// extension headers, since no packet of a wire leg has them.
func parseIP(b []byte, size int) (p packet.IP, ok bool) {
	p, err := packet.ParseIP(b)
	return p, err == nil && p.Total <= size && (p.Plain() || !p.V6())
}

// parseTCP parses the headers of a raw IP packet, which must be TCP.
func parseTCP(raw []byte) (p packet.IP, t packet.TCP, ok bool) {
	if p, ok = parseIP(raw, len(raw)); !ok {
		return p, nil, false
	}
	t, err := p.TCP()
	return p, t, err == nil
}

// sumOK verifies the checksum of the TCP segment or ICMP message in pkt, whose head is p.
func sumOK(p packet.IP, pkt *stack.PacketBuffer) bool {
	n, sum := len(p.Header), uint16(0)
	if p.Proto != packet.ProtoICMP {
		sum = packet.PseudoSum(p.Header, p.Proto, p.Total-n)
	}
	return packet.Combine(sum, pkt.Data().ChecksumAtOffset(n)) == 0xffff
}

// rawBytes returns a copy of the packet in an inbound buffer.
func rawBytes(pkt *stack.PacketBuffer) []byte {
	return pkt.Data().AsRange().ToSlice()
}

// buildTCP returns an outbound packet with a network header, a TCP header without options, options (a multiple of four
// bytes) and a payload. It sets lengths and checksums, so the packet needs no offloads.
func buildTCP(ip, tcp, opts, payload []byte) *stack.PacketBuffer {
	p := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: len(ip) + packet.TCPMinLen + len(opts),
		Payload:            buffer.MakeWithData(payload),
	})
	t := packet.TCP(p.TransportHeader().Push(packet.TCPMinLen + len(opts)))
	copy(t, tcp[:packet.TCPMinLen])
	copy(t[packet.TCPMinLen:], opts)
	t.SetHeaderLen(len(t))
	n := p.NetworkHeader().Push(len(ip))
	copy(n, ip)
	packet.SetPayloadLen(n, len(t)+len(payload))
	t.SetChecksum(0)
	t.SetChecksum(^packet.Sum(payload, packet.Sum(t, packet.PseudoSum(n, packet.ProtoTCP, len(t)+len(payload)))))
	p.NetworkProtocolNumber = link.Protocol(ip)
	p.TransportProtocolNumber = header.TCPProtocolNumber
	return p
}

// buildReset returns the exact reset (RFC 9293 3.10.7.1: SEQ=SEG.ACK) for the inbound segment with headers p and t.
func buildReset(p packet.IP, t packet.TCP) *stack.PacketBuffer {
	var ip [packet.IPv6Len]byte
	n := packet.Header{Src: p.Dst(), Dst: p.Src(), Proto: packet.ProtoTCP, TTL: 64}.Put(ip[:], 0)
	var r [packet.TCPMinLen]byte
	copy(r[0:2], t[2:4])
	copy(r[2:4], t[0:2])
	packet.TCP(r[:]).SetSeq(t.Ack())
	packet.TCP(r[:]).SetFlags(packet.FlagRST)
	return buildTCP(ip[:n], r[:], nil, nil)
}

// look is what the network header of an application's SYN reveals of its socket. The wire leg keeps it for the rest of
// the connection: networks that treat the connection by its class continue to do so, and the peer sees what its client
// has set.
type look struct {
	v6       bool
	ttl, tos uint8
}

// lookOf returns the look of a SYN with network header p.
func lookOf(p packet.IP) look { return look{v6: p.V6(), ttl: p.TTL(), tos: p.TOS()} }

// ecnBits are the bits of the traffic class that belong to the transport.
const ecnBits = 3

// dress makes an endpoint send as the socket did. Options that gVisor rejects keep their defaults.
func (l look) dress(ep tcpip.Endpoint) {
	ttl, tos := tcpip.IPv4TTLOption, tcpip.IPv4TOSOption
	if l.v6 {
		ttl, tos = tcpip.IPv6HopLimitOption, tcpip.IPv6TrafficClassOption
	}
	_ = ep.SetSockOptInt(ttl, int(l.ttl))
	_ = ep.SetSockOptInt(tos, int(l.tos&^ecnBits))
}

// networkHeader returns the network header of outbound packets of f.
func (f *flow) networkHeader() []byte {
	t, l := f.key.tuple(), f.look()
	b := make([]byte, packet.IPv6Len)
	b = b[:packet.Header{Src: t.Local.Addr(), Dst: t.Remote.Addr(), Proto: packet.ProtoTCP, TTL: l.ttl}.Put(b, 0)]
	if class := l.tos &^ ecnBits; l.v6 {
		b[0], b[1] = 0x60|class>>4, class<<4
	} else {
		b[1] = class
	}
	return b
}

// look returns the look of outbound packets of f.
func (f *flow) look() look {
	if !f.server {
		return f.adopt.look
	}
	return look{v6: f.key.v6, ttl: defaultTTL}
}

// defaultTTL is Linux's default.
const defaultTTL = 64

// Tuple identifies a connection as seen from the local application: on the client's host Local is the client
// application, on the server's host it is the server application. IPv4 addresses are never v4-mapped.
type Tuple struct {
	Local, Remote netip.AddrPort
}

// String returns "local>remote".
func (t Tuple) String() string { return fmt.Sprintf("%v>%v", t.Local, t.Remote) }

// valid reports whether both ends are complete and of one family.
func (t Tuple) valid() bool {
	l, r := t.Local.Addr(), t.Remote.Addr()
	return l.IsValid() && r.IsValid() && l.Is4() == r.Is4() && t.Local.Port() != 0 && t.Remote.Port() != 0
}

// tupleKey is a Tuple as plain memory, because it is hashed once per packet.
type tupleKey struct {
	local, remote [16]byte
	lport, rport  uint16
	v6            bool
}

func (k tupleKey) tuple() Tuple {
	return Tuple{
		Local:  netip.AddrPortFrom(netip.AddrFrom16(k.local).Unmap(), k.lport),
		Remote: netip.AddrPortFrom(netip.AddrFrom16(k.remote).Unmap(), k.rport),
	}
}

// outboundKey returns the key of a packet that leaves: its source is local.
func outboundKey(ip, tcp []byte) tupleKey {
	k := tupleKey{
		lport: packet.TCP(tcp).SrcPort(),
		rport: packet.TCP(tcp).DstPort(),
	}
	if ip[0]>>4 == 6 {
		k.v6 = true
		copy(k.local[:], ip[8:24])
		copy(k.remote[:], ip[24:40])
		return k
	}
	k.local, k.remote = mapped(ip[12:16]), mapped(ip[16:20])
	return k
}

// inboundKey returns the key of a packet that arrives: its destination is local.
func inboundKey(ip, tcp []byte) tupleKey {
	k := outboundKey(ip, tcp)
	k.local, k.remote = k.remote, k.local
	k.lport, k.rport = k.rport, k.lport
	return k
}

func mapped(v4 []byte) (a [16]byte) {
	a[10], a[11] = 0xff, 0xff
	copy(a[12:], v4)
	return a
}

// fullAddress converts a to gVisor's address type, and returns its network protocol.
func fullAddress(a netip.AddrPort) (tcpip.FullAddress, tcpip.NetworkProtocolNumber) {
	proto := header.IPv4ProtocolNumber
	if a.Addr().Is6() {
		proto = header.IPv6ProtocolNumber
	}
	return tcpip.FullAddress{NIC: nicID, Addr: tcpip.AddrFromSlice(a.Addr().AsSlice()), Port: a.Port()}, proto
}

// keyOf returns the key of a tuple.
func keyOf(t Tuple) tupleKey {
	return tupleKey{
		local: t.Local.Addr().As16(), remote: t.Remote.Addr().As16(),
		lport: t.Local.Port(), rport: t.Remote.Port(),
		v6: t.Local.Addr().Is6() && !t.Local.Addr().Is4In6(),
	}
}
