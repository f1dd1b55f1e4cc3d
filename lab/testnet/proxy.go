package testnet

import (
	"encoding/binary"
	"math/rand/v2"
)

// Proxy answers SYNs on behalf of the servers, as boxes do that protect them from floods. It contacts the server only
// when the client has acknowledged, and from then on translates the server's sequence numbers. Neither side gets window
// scaling, SACK or timestamps. A client cannot send before the server has answered.
type Proxy struct {
	On bool
	// Offers keeps our option on the SYN that the server gets.
	Offers bool
}

// proxied is one connection. proxies has it under the keys of both directions; the zero value of proxies is ready to
// use.
type proxied struct {
	syn    []byte // the client's
	isn    uint32 // the server's ISN as the client knows it
	by     uint32 // added to the server's sequence numbers
	asked  bool   // the server has been sent a SYN
	joined bool   // the server has answered it
}

type proxies struct {
	flows map[string]*proxied
}

var onlyMSS = []byte{2, 4, 0x05, 0xb4}

// pass handles a frame. It reports whether the frame, possibly changed, is passed on, and returns further frames to
// send to the hosts in their Ethernet headers. did reports whether it did anything.
func (x *proxies) pass(p Proxy, frame []byte, luck *rand.Rand) (goesOn bool, others [][]byte, did bool) {
	v, ok := viewFrame(frame)
	if !ok || !p.On && len(x.flows) == 0 {
		return true, nil, false
	}
	f := x.flows[v.key(false)]
	seq, ack := binary.BigEndian.Uint32(frame[v.tcp+4:]), binary.BigEndian.Uint32(frame[v.tcp+8:])
	switch {
	case v.flags()&0x12 == 0x02:
		if !p.On {
			return true, nil, false
		}
		if f == nil || binary.BigEndian.Uint32(f.syn[v.tcp+4:]) != seq {
			f = &proxied{syn: append([]byte(nil), frame...), isn: luck.Uint32()}
			x.note(v, f)
		}
		return false, [][]byte{v.answer(0x12, f.isn, seq+1, 0, onlyMSS)}, true
	case f == nil:
		return true, nil, false
	case f.fromClient(v):
		return x.client(p, f, v, ack)
	default:
		return x.server(f, v, seq, ack)
	}
}

func (x *proxies) note(v frameView, f *proxied) {
	if x.flows == nil || len(x.flows) > mirrorLimit {
		x.flows = map[string]*proxied{}
	}
	x.flows[v.key(false)], x.flows[v.key(true)] = f, f
}

func (f *proxied) fromClient(v frameView) bool {
	s, _ := viewFrame(f.syn)
	return s.key(false) == v.key(false)
}

// client handles a segment of the client after its SYN.
func (x *proxies) client(p Proxy, f *proxied, v frameView, ack uint32) (bool, [][]byte, bool) {
	if f.joined {
		binary.BigEndian.PutUint32(v.frame[v.tcp+8:], ack-f.by)
		v.fixChecksum()
		return true, nil, true
	}
	s, _ := viewFrame(f.syn)
	isn := binary.BigEndian.Uint32(f.syn[s.tcp+4:])
	if v.flags()&0x14 != 0x10 || ack != f.isn+1 {
		return false, nil, true
	}
	// Also again, when the client probes the window, since the SYN may have been lost.
	f.asked = true
	options := onlyMSS
	if ours := findOption(s.options()); p.Offers && ours != nil {
		options = append(append(append([]byte(nil), onlyMSS...), 1, 1), ours...)
	}
	return false, [][]byte{s.onward(0x02, isn, 0, 65535, options)}, true
}

// server handles a segment of the server.
func (x *proxies) server(f *proxied, v frameView, seq, ack uint32) (bool, [][]byte, bool) {
	switch {
	case !f.asked:
		return false, nil, true
	case v.flags()&0x04 != 0 && !f.joined: // refused
		return false, [][]byte{v.onward(0x14, f.isn+1, ack, 0, nil)}, true
	case v.flags()&0x12 == 0x12:
		f.by, f.joined = f.isn-seq, true
		window := binary.BigEndian.Uint16(v.frame[v.tcp+14:])
		return false, [][]byte{
			v.answer(0x10, ack, seq+1, 65535, nil),
			v.onward(0x10, f.isn+1, ack, window, nil),
		}, true
	}
	binary.BigEndian.PutUint32(v.frame[v.tcp+4:], seq+f.by)
	v.fixChecksum()
	return true, nil, true
}
