package netstack

import (
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/smcgw/smcgw/netstack/link"

	"github.com/smcgw/smcgw/packet"
)

// confirmSegment rebuilds an outbound segment that starts at ISN+1 with the confirm option. If option and payload do
// not fit into one packet, or if p is a super-packet, which the kernel would segment with the option in every piece, a
// first segment with the option leaves alone and the rest follows it.
func confirmSegment(f *flow, p *stack.PacketBuffer, ip []byte, t packet.TCP) ([]*stack.PacketBuffer, bool) {
	old := t[packet.TCPMinLen:]
	room := packet.TCPMaxLen - packet.TCPMinLen - optionSpace
	opts := append(make([]byte, 0, packet.TCPMaxLen), old...)
	if len(opts) > room {
		opts = t.Options().AppendWithoutSACK(opts[:0])
	}
	if len(opts) > room { // cannot happen: gVisor sends only timestamps and SACK
		return nil, true
	}
	opts = appendOption(opts, packet.RoleConfirm, f.nonce)
	payload := p.Data().AsRange().ToSlice()
	limit := max(int(f.segMax.Load())-packet.TCPMinLen-len(opts), 1)
	if len(payload) <= limit {
		return []*stack.PacketBuffer{buildTCP(ip, t, opts, payload)}, false
	}
	var head [packet.TCPMinLen]byte
	copy(head[:], t)
	head[13] &^= packet.FlagFIN | packet.FlagPSH
	first := buildTCP(ip, head[:], opts, payload[:limit])
	copy(head[:], t)
	packet.TCP(head[:]).SetSeq(t.Seq() + uint32(limit))
	rest := buildTCP(ip, head[:], old, payload[limit:])
	if link.Offloaded(p) {
		rest.GSOOptions = p.GSOOptions
		n := rest.NetworkHeader().Slice()
		packet.TCP(rest.TransportHeader().Slice()).SetChecksum(packet.PseudoSum(n, packet.ProtoTCP, rest.Size()-len(n)))
	}
	return []*stack.PacketBuffer{first, rest}, false
}

// noteConfirm checks an inbound segment of a server flow for the confirm option. A positive result is final. A later
// segment may still change a negative one, since a box may strip the option from one segment and pass it on another.
func (s *Stack) noteConfirm(f *flow, t packet.TCP) {
	if t.Seq() != f.isn+1 || t.Flags()&packet.FlagSYN != 0 {
		return
	}
	old := Confirmation(f.serve.confirm.Load())
	if old == ConfirmYes {
		return
	}
	verdict := ConfirmNo
	if o := packet.ParseTCPOptions(t.Options()); o.Option.Role == packet.RoleConfirm && o.Option.Nonce == f.nonce {
		verdict = ConfirmYes
	}
	if verdict == old || !f.serve.confirm.CompareAndSwap(uint32(old), uint32(verdict)) {
		return
	}
	if verdict == ConfirmYes {
		s.count.confirmed.Add(1)
	} else {
		s.count.unconfirmed.Add(1)
	}
}
