package memhost

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack/cookie"
	"github.com/smcgw/smcgw/packet"
)

// tick is the unit of a cookie's age, cookieLife how old it may be.
const (
	tick       = 8 * time.Millisecond
	cookieLife = 1 << 11
)

// cookieOf is the sequence number of the SYN-ACK with a timestamp, made in a tick.
func (m *Model) cookieOf(t ebpf.Tuple, isn, stamp uint32, at uint64) uint32 {
	b := []byte(t.Local.String() + t.Remote.String())
	b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, isn), stamp)
	b = binary.BigEndian.AppendUint64(b, at)
	return uint32(maphash.Bytes(m.secret, b))<<3 | uint32(at&7)
}

// answer turns an offered SYN into its SYN-ACK, which is all that is left of it.
func (m *Model) answer(s *segment, o packet.Option) verdict {
	syn, err := packet.ParseSYN(s.raw)
	if err != nil {
		return pass // it was carriable: cannot be
	}
	at := uint64(m.now() / tick)
	stamp := cookie.Stamp(syn.MSS, int(syn.WS), syn.SACK, o.Nonce, uint8(at>>3))
	mss := m.host.net.cfg.MTU - s.tcpAt - packet.TCPMinLen
	says := packet.TCPOptions{MSS: uint16(mss), TS: true, TSVal: stamp, TSEcr: syn.TSVal, SACK: syn.SACK, WS: -1}
	if syn.WS >= 0 {
		says.WS = cookie.Scale
	}
	opts := says.Append(nil)
	opts = append(opts, packet.KindNOP, packet.KindNOP)
	opts = packet.AppendOption(opts, packet.Option{Version: o.Version, Role: packet.RoleAccept, Nonce: o.Nonce})
	s.turnAround(m.cookieOf(s.tuple, s.seq, stamp, at), opts)
	m.count(statAnswered)
	return toWire
}

// turnAround makes the segment the SYN-ACK of itself.
func (s *segment) turnAround(seq uint32, opts []byte) {
	p, _ := packet.ParseSegment(s.raw) // it was read before
	p.Src, p.Dst, p.Seq, p.Ack, p.Flags, p.Options = p.Dst, p.Src, seq, s.seq+1, packet.FlagSYN|packet.FlagACK, opts
	p.Payload = nil
	s.raw = p.Append(nil)
	s.tcpLen = packet.TCPMinLen + len(opts)
}

// stamps returns the timestamps of a segment, if it has any.
func (s *segment) stamps() (value, echo uint32, ok bool) {
	o := packet.ParseTCPOptions(s.options())
	return o.TSVal, o.TSEcr, o.TS
}

// proofIn: a segment of a tuple without an entry, which may answer a SYN-ACK of ours.
func (m *Model) proofIn(s *segment) verdict {
	const flags = packet.FlagSYN | packet.FlagACK | packet.FlagRST
	_, stamp, ok := s.stamps()
	if !ok || s.flags&flags != packet.FlagACK {
		return pass
	}
	now := uint64(m.now() / tick)
	at := now - (now-uint64(stamp>>8&0xff<<3|(s.ack-1)&7))%cookieLife
	if s.ack-1 != m.cookieOf(s.tuple, s.seq-1, stamp, at) || !m.host.kernel.Listening(s.tuple.Local, s.tuple.Remote) {
		return pass
	}
	switch {
	case m.lateLocked():
		return m.dropped(statStaleDropped)
	case !m.aliveLocked():
		return pass
	}
	if o, _ := s.option(); o.Role == packet.RoleConfirm && !s.speaks() {
		return m.dropped(statSilentDrop)
	}
	return m.prove(s, stamp, time.Duration(at)*tick)
}

// speaks tells whether a segment holds a whole PROPOSAL.
func (s *segment) speaks() bool {
	const typeAt, lengthAt, header = 4, 6, 8
	b := s.raw[s.tcpAt+s.tcpLen:]
	return len(b) >= header && bytes.HasPrefix(b, eyecatcher) && negotiate.MessageType(b[typeAt]) == negotiate.TypeProposal &&
		int(binary.BigEndian.Uint16(b[lengthAt:])) <= len(b)
}

// prove makes the entry of a connection whose client has proved its address.
func (m *Model) prove(s *segment, stamp uint32, at time.Duration) verdict {
	rule := m.policy.Decide(ebpf.Query{Inbound: true, Peer: s.tuple.Remote.Addr(), Port: s.tuple.Local.Port(), Local: s.tuple.Local, Remote: s.tuple.Remote}).Rule
	o, _ := s.option()
	f := ebpf.Flow{State: ebpf.StateWire, Side: ebpf.SideServer, Nonce: uint16(stamp >> 16), Acked: true, Confirmed: o.Role == packet.RoleConfirm, Rule: rule}
	if !m.create(s, f) {
		return pass
	}
	e := m.flows[s.tuple]
	e.ISN, e.OfferedAt = s.seq-1, at
	m.count(statServed)
	return m.netstackIn()
}
