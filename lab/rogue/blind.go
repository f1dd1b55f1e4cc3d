package rogue

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/packet"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

const blindTTL = 33 // by which an Ear recognises what a Blind has sent

// Blind sends RoCEv2 packets with the address of another host, which is possible if no router checks source addresses.
// It sees no answers.
type Blind struct {
	fd   int
	from netip.Addr
	to   netip.AddrPort
	b    []byte
}

// NewBlind opens a socket on the host on which within runs functions. from is another host's address; to is where the
// device receives.
func NewBlind(within func(func() error) error, from netip.Addr, to netip.AddrPort) (*Blind, error) {
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

// Send sends a packet from a UDP port, with valid surrounding headers. If a queue on the way is full, it waits.
func (s *Blind) Send(port uint16, h *wire.Header, payload []byte) error {
	const identification = 1 // the kernel would fill in 0
	b := append(s.b[:0], make([]byte, packet.IPv4MinLen+packet.UDPLen)...)
	b = h.Append(b, len(payload))
	n := len(b)
	b = append(append(b, payload...), make([]byte, wire.Pad(len(payload)))...)
	length := len(b) - packet.IPv4MinLen + wire.ICRCLen
	icrc := wire.NewICRC(wire.Flow{Src: s.from, Dst: s.to.Addr(), SrcPort: port, DstPort: s.to.Port()})
	state := icrc.Begin(identification, length-packet.UDPLen, b[packet.IPv4MinLen+packet.UDPLen:n])
	b = wire.AppendICRC(b, wire.Update(state, b[n:]))
	ip := packet.Header{Src: s.from, Dst: s.to.Addr(), Proto: packet.ProtoUDP, TTL: blindTTL}.Put(b, length)
	binary.BigEndian.PutUint16(b[4:], identification)
	packet.UDP(b[ip:]).Put(port, s.to.Port(), length-packet.UDPLen)
	s.b = b
	return unix.Sendto(s.fd, b, 0, &unix.SockaddrInet4{Addr: s.to.Addr().As4()})
}

// Close closes the socket.
func (s *Blind) Close() error { return unix.Close(s.fd) }

// Overheard is a packet as a host on the path sees it.
type Overheard struct {
	wire.Header
	From, To netip.AddrPort
}

// Ear hears the RoCEv2 packets that arrive at a host, except those of a [Blind], and so knows what a Blind would have
// to guess.
type Ear struct {
	fd   int
	port uint16 // of the device
	b    []byte
}

// NewEar listens on the host on which within runs functions, whose device receives on port.
func NewEar(within func(func() error) error, port uint16) (*Ear, error) {
	e := &Ear{port: port, b: make([]byte, 1<<16)}
	err := within(func() (err error) {
		e.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("raw socket: %w", err)
	}
	return e, unix.SetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
}

// Heard returns the next packet, or false if there is none now. Of a train it returns only the first packet.
func (e *Ear) Heard() (o Overheard, ok bool) {
	for {
		n, _, err := unix.Recvfrom(e.fd, e.b, 0)
		if err != nil {
			return o, false
		}
		p, err := packet.ParseIP(e.b[:n])
		if err != nil || len(p.Payload) < packet.UDPLen || p.TTL() == blindTTL {
			continue
		}
		u := packet.UDP(p.Payload)
		o.From, o.To = netip.AddrPortFrom(p.Src(), u.SrcPort()), netip.AddrPortFrom(p.Dst(), u.DstPort())
		if o.To.Port() != e.port {
			continue
		}
		if _, err := o.Parse(u[packet.UDPLen:]); err == nil {
			return o, true
		}
	}
}

// Close closes the socket.
func (e *Ear) Close() error { return unix.Close(e.fd) }
