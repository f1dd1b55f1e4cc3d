package testnet

import (
	"math/rand/v2"

	"github.com/smcgw/smcgw/packet"
)

// resegmenter splits TCP segments at other places and joins them, as boxes and network cards with offloads do. Every
// piece of a segment has the segment's options; two joined segments have those of the first. The zero value is ready to
// use.
type resegmenter struct {
	held map[string][]byte // the last segment of each direction that is held back
}

// endsOrBegins are the flags of segments that stay as they are.
const endsOrBegins = packet.FlagFIN | packet.FlagSYN | packet.FlagRST

// cut splits a segment into pieces of random sizes, each except the last at least 64 bytes.
func cut(frame []byte, luck *rand.Rand) [][]byte {
	v, ok := viewFrame(frame)
	if !ok || v.Flags()&endsOrBegins != 0 || v.size() <= 64 {
		return [][]byte{frame}
	}
	size := v.size()
	var pieces [][]byte
	for at := 0; at < size; {
		n := min(64+luck.IntN(1400), size-at)
		pieces = append(pieces, v.piece(at, n))
		at += n
	}
	return pieces
}

// piece returns a segment with n bytes of v's payload from offset at on.
func (v frameView) piece(at, n int) []byte {
	out := append(make([]byte, vnetHeaderLen, v.end()+n), v.frame[vnetHeaderLen:v.end()]...)
	out = append(out, v.frame[v.end()+at:v.end()+at+n]...)
	packet.TCP(out[v.l4:]).SetSeq(v.Seq() + uint32(at))
	return v.finished(out)
}

// join returns held and frame as one segment, or nil if frame does not directly follow held or the result would exceed
// mtu.
func join(held, frame []byte, mtu int) []byte {
	a, okA := viewFrame(held)
	b, okB := viewFrame(frame)
	if !okA || !okB || a.key(false) != b.key(false) || len(a.TCP) != len(b.TCP) ||
		findOption(b.Options()) != nil || (a.Flags()|b.Flags())&^(packet.FlagACK|packet.FlagPSH) != 0 {
		return nil
	}
	if a.size() == 0 || b.size() == 0 || b.Seq() != a.Seq()+uint32(a.size()) || a.last-a.ip+b.size() > mtu {
		return nil
	}
	out := append(held[:a.last:a.last], frame[b.end():b.last]...)
	t := packet.TCP(out[a.l4:])
	t.SetAck(b.Ack())
	t.SetWindow(b.Window())
	t.SetFlags(a.Flags() | b.Flags())
	return a.finished(out)
}

// pass takes a segment and returns those to send now. What is held is sent with the next packet of that direction, or
// by the next flush.
func (r *resegmenter) pass(frame []byte, mtu int) (out [][]byte, joined bool) {
	v, ok := viewFrame(frame)
	if !ok {
		return [][]byte{frame}, false
	}
	if r.held == nil {
		r.held = map[string][]byte{}
	}
	key := v.key(false)
	if held := r.held[key]; held != nil {
		if both := join(held, frame, mtu); both != nil {
			r.held[key] = both
			return nil, true
		}
		delete(r.held, key)
		out = append(out, held)
	}
	if v.size() > 0 && v.Flags()&endsOrBegins == 0 {
		r.held[key] = frame
		return out, false
	}
	return append(out, frame), false
}

// flush returns everything that is held.
func (r *resegmenter) flush() (out [][]byte) {
	for _, frame := range r.held {
		out = append(out, frame)
	}
	clear(r.held)
	return out
}
