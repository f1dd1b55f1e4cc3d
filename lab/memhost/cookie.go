package memhost

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// tick is the unit of a cookie's age, cookieLife how old it may be.
const (
	tick       = 8 * time.Millisecond
	cookieLife = 1 << 11
)

// Lengths and kinds of TCP options, RFC 9293 and RFC 7323.
const (
	optionMSS      = 2
	optionScale    = 3
	optionSACK     = 4
	optionStamps   = 8
	optionStampLen = 10
)

// cookieOf is the sequence number of the SYN-ACK with a timestamp, made in a tick.
func (m *Model) cookieOf(t ebpf.Tuple, isn, stamp uint32, at uint64) uint32 {
	b := []byte(t.Local.String() + t.Remote.String())
	b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, isn), stamp)
	b = binary.BigEndian.AppendUint64(b, at)
	return uint32(maphash.Bytes(m.secret, b))<<3 | uint32(at&7)
}

// answer turns an offered SYN into its SYN-ACK, which is all that is left of it.
func (m *Model) answer(s *segment, o negotiate.Option) verdict {
	syn, err := negotiate.ParseSYN(s.raw)
	if err != nil {
		return pass // it was carriable: cannot be
	}
	at := uint64(m.now() / tick)
	stamp := netstack.CookieStamp(syn.MSS, int(syn.WS), syn.SACK, o.Nonce, uint8(at>>3))
	mss := m.host.net.cfg.MTU - s.tcpAt - tcpMinLen
	opts := []byte{optionMSS, 4, byte(mss >> 8), byte(mss), optionNOP, optionNOP, optionStamps, optionStampLen}
	opts = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(opts, stamp), syn.TSVal)
	if syn.SACK {
		opts = append(opts, optionNOP, optionNOP, optionSACK, 2)
	}
	if syn.WS >= 0 {
		opts = append(opts, optionNOP, optionScale, 3, netstack.CookieScale)
	}
	opts = append(opts, optionNOP, optionNOP)
	opts = negotiate.AppendOption(opts, negotiate.Option{Version: o.Version, Role: negotiate.RoleAccept, Nonce: o.Nonce})
	s.turnAround(m.cookieOf(s.tuple, s.seq, stamp, at), opts)
	m.count(statAnswered)
	return toWire
}

// turnAround makes the segment the SYN-ACK of itself.
func (s *segment) turnAround(seq uint32, opts []byte) {
	p := append([]byte(nil), s.raw[:s.tcpAt+tcpMinLen]...)
	at, n := 12, 4
	if s.tcpAt == ip6Len {
		at, n = 8, 16
	}
	copy(p[at:], s.raw[at+n:at+2*n])
	copy(p[at+n:], s.raw[at:at+n])
	t := p[s.tcpAt:]
	copy(t, s.raw[s.tcpAt+2:s.tcpAt+4])
	copy(t[2:], s.raw[s.tcpAt:s.tcpAt+2])
	binary.BigEndian.PutUint32(t[4:], seq)
	binary.BigEndian.PutUint32(t[8:], s.seq+1)
	t[tcpFlagsAt] = negotiate.FlagSYN | negotiate.FlagACK
	s.raw = append(p, opts...)
	s.tcpLen = tcpMinLen + len(opts)
	s.raw[s.tcpAt+tcpDataAt] = byte(s.tcpLen/4) << 4
	s.setLength()
}

// stamps returns the timestamps of a segment, if it has any.
func (s *segment) stamps() (value, echo uint32, ok bool) {
	for b := s.options(); len(b) > 1 && b[0] != 0; {
		n := int(b[1])
		switch {
		case b[0] == optionNOP:
			n = 1
		case n < 2 || n > len(b):
			return 0, 0, false
		case b[0] == optionStamps && n == optionStampLen:
			return binary.BigEndian.Uint32(b[2:]), binary.BigEndian.Uint32(b[6:]), true
		}
		b = b[n:]
	}
	return 0, 0, false
}

// proofIn: a segment of a tuple without an entry, which may answer a SYN-ACK of ours.
func (m *Model) proofIn(s *segment) verdict {
	const flags = negotiate.FlagSYN | negotiate.FlagACK | negotiate.FlagRST
	_, stamp, ok := s.stamps()
	if !ok || s.flags&flags != negotiate.FlagACK {
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
	if o, _ := s.option(); o.Role == negotiate.RoleConfirm && !s.speaks() {
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
	rule := m.policy.Decide(ebpf.Query{Inbound: true, Peer: s.tuple.Remote.Addr(), Port: s.tuple.Local.Port()}).Rule
	f := ebpf.Flow{State: ebpf.StateWire, Side: ebpf.SideServer, Nonce: uint16(stamp >> 16), Acked: true, Rule: rule}
	if !m.create(s, f) {
		return pass
	}
	e := m.flows[s.tuple]
	e.ISN, e.OfferedAt = s.seq-1, at
	m.count(statServed)
	return m.netstackIn()
}
