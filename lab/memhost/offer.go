package memhost

import (
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/packet"
)

// note is what connect() and the SYN of a local socket are remembered by: the
// socket storage of the programs. Here it is found by the tuple and belongs to
// the connection with this ISN.
type note struct {
	isn     uint32
	nonce   uint16
	rule    int
	written bool // the first SYN carried the offer
	refused bool // which was answered by a reset
	retries int
	at      time.Duration
}

// offerRefused returns why a new connection gets no offer, and the rule.
func (m *Model) offerRefused(t ebpf.Tuple) (reason uint8, rule int) {
	if m.oddAddress(t.Remote.Addr()) {
		return ebpf.ReasonAddress, ebpf.NoRule
	}
	v := m.decide(ebpf.Query{Peer: t.Remote.Addr(), Port: t.Remote.Port(), Local: t.Local, Remote: t.Remote, Cgroup: "/"})
	if v.Action == ebpf.ActionPass {
		return v.Reason, v.Rule
	}
	if r := m.switchedOff(); r != 0 {
		return r, v.Rule
	}
	if r := m.remembered(t); r != 0 {
		return r, v.Rule
	}
	return 0, v.Rule
}

// switchedOff returns why no connection may be offered or accepted now.
func (m *Model) switchedOff() uint8 {
	switch {
	case m.off:
		return ebpf.ReasonOff
	case m.mode != ebpf.ModeEnforce:
		return ebpf.ReasonMode
	case m.native != 0:
		return m.native
	case !m.aliveLocked():
		return ebpf.ReasonGatewayStale
	default:
		return 0
	}
}

// sockops is what happens in the application's socket before a segment leaves:
// the offer on its first SYN, and the look back when it is established.
func (m *Model) sockops(s *segment) {
	n := m.notes[s.tuple]
	switch {
	case s.synOnly() && (n == nil || n.isn != s.seq):
		m.onConnect(s)
	case s.synOnly():
		if f := m.flows[s.tuple]; f == nil || !f.Acked { // the flag stays for one SYN only: this one goes bare
			n.retries++
		}
	case n != nil && s.has(packet.FlagACK) && !s.has(packet.FlagSYN|packet.FlagRST) && s.seq == n.isn+1:
		delete(m.notes, s.tuple)
		m.onEstablished(s.tuple, n)
	}
}

// onConnect decides about the first SYN of a connection.
func (m *Model) onConnect(s *segment) {
	n := &note{isn: s.seq, at: m.now()}
	m.notes[s.tuple] = n
	reason, rule := m.offerRefused(s.tuple)
	if reason != 0 {
		m.stayNative(ebpf.Event{Tuple: s.tuple, Reason: reason, Side: ebpf.SideClient, Rule: rule})
		return
	}
	n.nonce, n.rule = uint16(m.rng.Uint32()), rule
	n.written = s.addOption(packet.Option{Version: packet.OptionVersion, Role: packet.RoleOffer, Nonce: n.nonce})
	if !n.written { // the SYN's options are full
		m.stayNative(ebpf.Event{Tuple: s.tuple, Reason: ebpf.ReasonSYNOptions, Side: ebpf.SideClient, Rule: rule})
	}
}

// onEstablished: a connection that was offered, retransmitted and is not ours
// came up only because the retransmission was bare.
func (m *Model) onEstablished(t ebpf.Tuple, n *note) {
	switch {
	case !n.written:
	case n.refused:
		m.stayNative(ebpf.Event{Tuple: t, Reason: ebpf.ReasonOptionRejected, Side: ebpf.SideClient, Rule: n.rule})
	case n.retries == 0:
		m.optionPassed(t)
	case m.flows[t] == nil:
		m.stayNative(ebpf.Event{Tuple: t, Reason: m.optionEaten(t), Side: ebpf.SideClient, Rule: n.rule})
	}
}

// noteAge is longer than any kernel tries to connect.
const noteAge = 180 * time.Second

// sweepNotes forgets sockets that gave up connecting.
func (m *Model) sweepNotes(now time.Duration) {
	for t, n := range m.notes {
		if now-n.at > noteAge {
			delete(m.notes, t)
		}
	}
}
