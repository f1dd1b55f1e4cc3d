package rogue

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"

	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// Packets sends hand-made RoCEv2 packets from one UDP port to another.
type Packets struct {
	conn *net.UDPConn
	icrc wire.ICRC
}

// NewPackets opens a socket on the host on which within runs functions.
func NewPackets(within func(func() error) error, from netip.Addr, to netip.AddrPort) (*Packets, error) {
	p := &Packets{}
	err := within(func() (err error) {
		p.conn, err = net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(to))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("packets: %w", err)
	}
	port := p.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	p.icrc = wire.NewICRC(wire.Flow{Src: from, Dst: to.Addr(), SrcPort: port, DstPort: to.Port()})
	return p, nil
}

// Send sends one packet with a correct ICRC.
func (p *Packets) Send(h wire.Header, payload []byte) error {
	b := h.Append(nil, len(payload))
	n := len(b)
	b = append(append(b, payload...), make([]byte, wire.Pad(len(payload)))...)
	state := wire.Update(p.icrc.Begin(0, len(b)+wire.ICRCLen, b[:n]), b[n:])
	return p.SendRaw(wire.AppendICRC(b, state))
}

// SendRaw sends bytes. It is no error if there is no listener.
func (p *Packets) SendRaw(b []byte) error {
	_, err := p.conn.Write(b)
	if err != nil {
		_, err = p.conn.Write(b) // the first attempt may report an earlier ICMP error
	}
	return err
}

// opcodes are those of the packets of a storm, most of them for connections.
var opcodes = []wire.Opcode{
	wire.RCSendOnly, wire.RCSendFirst, wire.RCSendLastImm, wire.RCWriteOnly, wire.RCWriteFirst, wire.RCWriteMiddle,
	wire.RCWriteOnlyImm, wire.RCReadRequest, wire.RCAcknowledge, wire.RCAtomicAcknowledge, wire.RCCompareSwap, wire.UCWriteOnly,
	wire.UDSendOnly, wire.UDSendOnlyImm, wire.CNP, 0xff,
}

// Storm sends n packets with random contents to the queue pairs that pick returns.
func (p *Packets) Storm(rng *rand.Rand, n int, pick func() uint32) error {
	payload := make([]byte, 1024)
	for i := range n {
		h := wire.Header{
			Opcode: opcodes[rng.IntN(len(opcodes))], Migrated: true, AckReq: rng.IntN(2) == 0, PKey: 0xffff,
			BECN: rng.IntN(4) == 0, DestQP: pick(), PSN: rng.Uint32(), QKey: rng.Uint32(), SrcQP: rng.Uint32(),
			VA: rng.Uint64(), RKey: rng.Uint32(), Length: rng.Uint32N(1 << 20), Syndrome: wire.Syndrome(rng.Uint32()),
			MSN: rng.Uint32(), Imm: rng.Uint32(),
		}
		var err error
		if i%8 == 0 {
			for j := range payload {
				payload[j] = byte(rng.Uint32())
			}
			err = p.SendRaw(payload[:rng.IntN(len(payload))+1])
		} else {
			err = p.Send(h, payload[:rng.IntN(len(payload)/4)*4])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Close closes the socket.
func (p *Packets) Close() error { return p.conn.Close() }
