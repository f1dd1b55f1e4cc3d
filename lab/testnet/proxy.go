package testnet

import (
	"bytes"
	"math/rand/v2"

	"github.com/smcgw/smcgw/packet"
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
	syn    frameView // the client's
	isn    uint32    // the server's ISN as the client knows it
	by     uint32    // added to the server's sequence numbers
	asked  bool      // the server has been sent a SYN
	joined bool      // the server has answered it
}

type proxies struct {
	flows map[string]*proxied
}

const (
	synAck = packet.FlagSYN | packet.FlagACK
	rstAck = packet.FlagRST | packet.FlagACK
)

var onlyMSS = []byte{2, 4, 0x05, 0xb4}

// pass handles a frame. It reports whether the frame, possibly changed, is passed on, and returns further frames to
// send to the hosts in their Ethernet headers. did reports whether it did anything.
func (x *proxies) pass(p Proxy, frame []byte, luck *rand.Rand) (goesOn bool, others [][]byte, did bool) {
	v, ok := viewFrame(frame)
	if !ok || !p.On && len(x.flows) == 0 {
		return true, nil, false
	}
	f := x.flows[v.key(false)]
	switch {
	case v.Flags()&synAck == packet.FlagSYN:
		if !p.On {
			return true, nil, false
		}
		if f == nil || f.syn.Seq() != v.Seq() {
			f = &proxied{isn: luck.Uint32()}
			f.syn, _ = viewFrame(bytes.Clone(frame))
			x.note(v, f)
		}
		return false, [][]byte{v.answer(synAck, f.isn, v.Seq()+1, 0, onlyMSS)}, true
	case f == nil:
		return true, nil, false
	case f.syn.key(false) == v.key(false):
		return f.client(p, v)
	default:
		return f.server(v)
	}
}

func (x *proxies) note(v frameView, f *proxied) {
	if x.flows == nil || len(x.flows) > mirrorLimit {
		x.flows = map[string]*proxied{}
	}
	x.flows[v.key(false)], x.flows[v.key(true)] = f, f
}

// client handles a segment of the client after its SYN.
func (f *proxied) client(p Proxy, v frameView) (bool, [][]byte, bool) {
	if f.joined {
		v.SetAck(v.Ack() - f.by)
		v.mend()
		return true, nil, true
	}
	if v.Flags()&(packet.FlagACK|packet.FlagRST) != packet.FlagACK || v.Ack() != f.isn+1 {
		return false, nil, true
	}
	// Also again, when the client probes the window, since the SYN may have been lost.
	f.asked = true
	options := onlyMSS
	if ours := findOption(f.syn.Options()); p.Offers && ours != nil {
		options = append(append(append([]byte(nil), onlyMSS...), 1, 1), ours...)
	}
	return false, [][]byte{f.syn.onward(packet.FlagSYN, f.syn.Seq(), 0, 65535, options)}, true
}

// server handles a segment of the server.
func (f *proxied) server(v frameView) (bool, [][]byte, bool) {
	switch {
	case !f.asked:
		return false, nil, true
	case v.Flags()&packet.FlagRST != 0 && !f.joined: // refused
		return false, [][]byte{v.onward(rstAck, f.isn+1, v.Ack(), 0, nil)}, true
	case v.Flags()&synAck == synAck:
		f.by, f.joined = f.isn-v.Seq(), true
		return false, [][]byte{
			v.answer(packet.FlagACK, v.Ack(), v.Seq()+1, 65535, nil),
			v.onward(packet.FlagACK, f.isn+1, v.Ack(), v.Window(), nil),
		}, true
	}
	v.SetSeq(v.Seq() + f.by)
	v.mend()
	return true, nil, true
}
