package netstack

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// confirmSegment rebuilds an outbound segment that starts at ISN+1 with the
// confirm option. Where both do not fit into one packet, and where p is a
// super-packet that the kernel would cut up with the option in every piece, the
// first segment leaves alone and the rest behind it.
func confirmSegment(f *flow, p *stack.PacketBuffer, ip, t []byte) ([]*stack.PacketBuffer, bool) {
	old := t[minTCPHeader:]
	room := maxTCPHeader - minTCPHeader - optionSpace
	opts := append(make([]byte, 0, maxTCPHeader), old...)
	if len(opts) > room {
		opts = withoutSACK(opts)
	}
	if len(opts) > room { // cannot be: timestamps and SACK are all gVisor sends
		return nil, true
	}
	opts = appendOption(opts, roleConfirm, f.nonce)
	payload := p.Data().AsRange().ToSlice()
	limit := max(int(f.segMax.Load())-minTCPHeader-len(opts), 1)
	if len(payload) <= limit {
		return []*stack.PacketBuffer{buildTCP(ip, t, opts, payload)}, false
	}
	var head [minTCPHeader]byte
	copy(head[:], t)
	head[13] &^= flagFIN | flagPSH
	first := buildTCP(ip, head[:], opts, payload[:limit])
	copy(head[:], t)
	binary.BigEndian.PutUint32(head[4:], seqOf(t)+uint32(limit))
	rest := buildTCP(ip, head[:], old, payload[limit:])
	if offloaded(p) {
		rest.GSOOptions = p.GSOOptions
		n := rest.NetworkHeader().Slice()
		sum := pseudoHeader(n, rest.Size()-len(n))
		binary.BigEndian.PutUint16(rest.TransportHeader().Slice()[16:], sum)
	}
	return []*stack.PacketBuffer{first, rest}, false
}

// noteConfirm judges an inbound segment of a server flow. A positive answer
// stays; a negative one may still be turned by a later segment, since a box may
// strip one and pass another.
func (s *Stack) noteConfirm(f *flow, t []byte) {
	if seqOf(t) != f.isn+1 || flagsOf(t)&flagSYN != 0 {
		return
	}
	old := Confirmation(f.serve.confirm.Load())
	if old == ConfirmYes {
		return
	}
	verdict := ConfirmNo
	if o := parseOptions(t); o.role == roleConfirm && o.nonce == f.nonce {
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
