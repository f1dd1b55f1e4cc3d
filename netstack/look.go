package netstack

import "gvisor.dev/gvisor/pkg/tcpip"

// look is what the network header of an application's SYN shows of its socket. The
// wire leg that goes on with the connection has the same: networks that treat it by
// its class go on to, and the peer finds what its client has set.
type look struct {
	v6       bool
	ttl, tos uint8
}

// lookOf reads the network header n of a SYN.
func lookOf(n []byte) look {
	if n[0]>>4 == 6 {
		return look{v6: true, ttl: n[7], tos: n[0]<<4 | n[1]>>4}
	}
	return look{ttl: n[8], tos: n[1]}
}

// ecnBits of the class belong to the transport.
const ecnBits = 3

// dress has an endpoint send as the socket did. What gVisor refuses stays its default.
func (l look) dress(ep tcpip.Endpoint) {
	ttl, tos := tcpip.IPv4TTLOption, tcpip.IPv4TOSOption
	if l.v6 {
		ttl, tos = tcpip.IPv6HopLimitOption, tcpip.IPv6TrafficClassOption
	}
	_ = ep.SetSockOptInt(ttl, int(l.ttl))
	_ = ep.SetSockOptInt(tos, int(l.tos&^ecnBits))
}
