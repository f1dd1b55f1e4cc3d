package rogue

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs/soft/wire"
)

const (
	udpLen   = 8
	rocePort = 4791
	blindTTL = 33 // by which the ear knows what the blind one has sent
)

// Blind sends RoCEv2 packets with the address of another host, as one can where
// no router looks at that. It sees no answer.
type Blind struct {
	fd   int
	from netip.Addr
	to   netip.Addr
	b    []byte
}

// NewBlind makes a socket on the host that within runs functions on; from is
// another's address.
func NewBlind(within func(func() error) error, from, to netip.Addr) (*Blind, error) {
	s := &Blind{from: from, to: to}
	err := within(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("raw socket: %w", err)
	}
	return s, nil
}

// Send sends a packet from a UDP port, with everything right around it. A full
// queue on the way is waited for.
func (s *Blind) Send(port uint16, h *wire.Header, payload []byte) error {
	const identification = 1 // the kernel would fill in 0
	be := binary.BigEndian
	b := append(s.b[:0], make([]byte, ipMin+udpLen)...)
	b = h.Append(b, len(payload))
	n := len(b)
	b = append(append(b, payload...), make([]byte, wire.Pad(len(payload)))...)
	length := len(b) - ipMin + wire.ICRCLen
	icrc := wire.NewICRC(wire.Flow{Src: s.from, Dst: s.to, SrcPort: port, DstPort: rocePort})
	state := icrc.Begin(identification, length-udpLen, b[ipMin+udpLen:n])
	b = wire.AppendICRC(b, wire.Update(state, b[n:]))
	src, dst := s.from.As4(), s.to.As4()
	b[0], b[8], b[9] = 0x45, blindTTL, unix.IPPROTO_UDP
	be.PutUint16(b[2:], uint16(len(b)))
	be.PutUint16(b[4:], identification)
	be.PutUint16(b[6:], 0x4000) // do not fragment
	copy(b[12:], src[:])
	copy(b[16:], dst[:])
	be.PutUint16(b[ipMin:], port)
	be.PutUint16(b[ipMin+2:], rocePort)
	be.PutUint16(b[ipMin+4:], uint16(length))
	s.b = b
	return unix.Sendto(s.fd, b, 0, &unix.SockaddrInet4{Addr: dst})
}

// Close ends the socket.
func (s *Blind) Close() error { return unix.Close(s.fd) }

// Overheard is a packet as a host on the path sees it.
type Overheard struct {
	wire.Header
	From, To netip.AddrPort
}

// Ear hears the RoCEv2 packets that come to a host, but those of a [Blind]: what
// that would have to guess.
type Ear struct {
	fd int
	b  []byte
}

// NewEar listens on the host that within runs functions on.
func NewEar(within func(func() error) error) (*Ear, error) {
	e := &Ear{b: make([]byte, 1<<16)}
	err := within(func() (err error) {
		e.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("raw socket: %w", err)
	}
	return e, unix.SetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
}

// Heard returns the next packet, false if there is none now. Of a train it is the
// first one.
func (e *Ear) Heard() (o Overheard, ok bool) {
	for {
		n, _, err := unix.Recvfrom(e.fd, e.b, 0)
		if err != nil {
			return o, false
		}
		b := e.b[:n]
		if n < ipMin || n < int(b[0]&15)*4+udpLen || b[8] == blindTTL {
			continue
		}
		u := b[int(b[0]&15)*4:]
		src, _ := netip.AddrFromSlice(b[12:16])
		dst, _ := netip.AddrFromSlice(b[16:20])
		o.From = netip.AddrPortFrom(src, binary.BigEndian.Uint16(u))
		o.To = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(u[2:]))
		if o.To.Port() != rocePort {
			continue
		}
		if _, err := o.Parse(u[udpLen:]); err == nil {
			return o, true
		}
	}
}

// Close ends the socket.
func (e *Ear) Close() error { return unix.Close(e.fd) }
