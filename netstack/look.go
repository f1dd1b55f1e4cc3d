package netstack

import (
	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/smcgw/smcgw/packet"
)

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
