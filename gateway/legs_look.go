package gateway

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Look is what a packet's IP header shows of where it came from. Gateway sockets take
// it on, for applications that look: IP_MINTTL (RFC 5082), filters, TCP_SAVE_SYN. The
// zero value is of a packet that was none.
type Look struct {
	TTL, TOS uint8
}

// lookOf reads the IP header of a raw packet.
func lookOf(pkt []byte) Look {
	switch {
	case len(pkt) >= 20 && pkt[0]>>4 == 4:
		return Look{TTL: pkt[8], TOS: pkt[1]}
	case len(pkt) >= 40 && pkt[0]>>4 == 6:
		return Look{TTL: pkt[7], TOS: pkt[0]<<4 | pkt[1]>>4}
	default:
		return Look{}
	}
}

// farthest is the TTL of what comes from the next host, if that sends as those do who
// prove by it that they are next to each other.
const farthest = 255

// near is the TTL that a packet of such a sender would have left. Others begin with
// 64 or 128; nobody is that far away.
func (l Look) near() uint8 {
	switch {
	case l.TTL == 0:
		return farthest
	case l.TTL <= 64:
		return farthest - (64 - l.TTL)
	case l.TTL <= 128:
		return farthest - (128 - l.TTL)
	default:
		return l.TTL
	}
}

// ecnBits of TOS belong to the transport.
const ecnBits = 3

// dress makes a socket that is not connected begin as the packet did.
func (l Look) dress(fd int, v6 bool) error {
	if l == (Look{}) {
		return nil
	}
	ttl, tos := int(l.TTL), int(l.TOS&^ecnBits)
	if v6 {
		return errors.Join(setHops(fd, v6, ttl), unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TCLASS, tos))
	}
	return errors.Join(setHops(fd, v6, ttl), unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TOS, tos))
}

// setHops sets the TTL of what a socket sends.
func setHops(fd int, v6 bool, ttl int) error {
	if v6 {
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS, ttl)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TTL, ttl)
}

// approach has a leg send as the packet's sender does who wants to be known as near.
// The application may ask for that at any time.
func (l *appLeg) approach(look Look) {
	if fd, err := l.take(); err == nil {
		_ = setHops(fd, l.tuple.Local.Addr().Is6(), int(look.near())) // a stand-in of tests has none
	}
}
