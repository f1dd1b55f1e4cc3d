package host

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/legs"
)

// Look is what a packet's IP header shows of its origin. Gateway sockets imitate it, for applications that inspect it:
// IP_MINTTL (RFC 5082), filters, TCP_SAVE_SYN. The zero value stands for no packet.
type Look struct {
	TTL, TOS uint8
}

// LookOf reads the IP header of a raw packet.
func LookOf(pkt []byte) Look {
	switch {
	case len(pkt) >= 20 && pkt[0]>>4 == 4:
		return Look{TTL: pkt[8], TOS: pkt[1]}
	case len(pkt) >= 40 && pkt[0]>>4 == 6:
		return Look{TTL: pkt[7], TOS: pkt[0]<<4 | pkt[1]>>4}
	default:
		return Look{}
	}
}

// Near returns the TTL that the packet would have left if its sender had begun with 255. It assumes that a sender
// begins with 64, 128 or 255, which is true as long as paths are shorter than that.
func (l Look) Near() uint8 {
	switch {
	case l.TTL == 0:
		return legs.Farthest
	case l.TTL <= 64:
		return legs.Farthest - (64 - l.TTL)
	case l.TTL <= 128:
		return legs.Farthest - (128 - l.TTL)
	default:
		return l.TTL
	}
}

// ecnBits are the bits of TOS that belong to the transport.
const ecnBits = 3

// Dress sets TTL and TOS of an unconnected socket to those of the packet.
func (l Look) Dress(fd int, v6 bool) error {
	if l == (Look{}) {
		return nil
	}
	ttl, tos := int(l.TTL), int(l.TOS&^ecnBits)
	if v6 {
		return errors.Join(legs.SetHops(fd, v6, ttl), unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TCLASS, tos))
	}
	return errors.Join(legs.SetHops(fd, v6, ttl), unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TOS, tos))
}
