package testnet

import (
	"encoding/binary"
	"math/rand/v2"
)

// resegmenter splits TCP segments at other places and joins them, as boxes and network cards with offloads do. Every
// piece of a segment has the segment's options; two joined segments have those of the first. The zero value is ready to
// use.
type resegmenter struct {
	held map[string][]byte // the last segment of each direction that is held back
}

// cut splits a segment into pieces of random sizes, each except the last at least 64 bytes.
func cut(frame []byte, luck *rand.Rand) [][]byte {
	v, ok := viewFrame(frame)
	size := v.ipLast - v.end
	if !ok || v.flags()&0x07 != 0 || size <= 64 {
		return [][]byte{frame}
	}
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
	out := append(make([]byte, vnetHeaderLen, v.end+n), v.frame[vnetHeaderLen:v.end]...)
	out = append(out, v.frame[v.end+at:v.end+at+n]...)
	seq := binary.BigEndian.Uint32(out[v.tcp+4:])
	binary.BigEndian.PutUint32(out[v.tcp+4:], seq+uint32(at))
	p := frameView{frame: out, ip: v.ip, tcp: v.tcp, end: v.end, v6: v.v6, ipLast: len(out)}
	p.fixLengths()
	p.fixChecksum()
	return out
}

// join returns held and frame as one segment, or nil if frame does not directly follow held or the result would exceed
// mtu.
func join(held, frame []byte, mtu int) []byte {
	a, okA := viewFrame(held)
	b, okB := viewFrame(frame)
	if !okA || !okB || a.key(false) != b.key(false) || len(a.options()) != len(b.options()) ||
		findOption(b.options()) != nil || (a.flags()|b.flags())&^0x18 != 0 {
		return nil
	}
	size := a.ipLast - a.end
	next := binary.BigEndian.Uint32(held[a.tcp+4:]) + uint32(size)
	if size == 0 || b.ipLast == b.end || next != binary.BigEndian.Uint32(frame[b.tcp+4:]) || a.ipLast-a.ip+b.ipLast-b.end > mtu {
		return nil
	}
	out := append(held[:a.ipLast:a.ipLast], frame[b.end:b.ipLast]...)
	copy(out[a.tcp+8:a.tcp+12], frame[b.tcp+8:b.tcp+12])   // acknowledgement
	copy(out[a.tcp+14:a.tcp+16], frame[b.tcp+14:b.tcp+16]) // window
	out[a.tcp+13] |= b.flags()
	j := frameView{frame: out, ip: a.ip, tcp: a.tcp, end: a.end, v6: a.v6, ipLast: len(out)}
	j.fixLengths()
	j.fixChecksum()
	return out
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
	if v.ipLast > v.end && v.flags()&0x07 == 0 {
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
