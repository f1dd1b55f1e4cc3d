package segment

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/smcgw/smcgw/packet"
)

// Map is the difference between the sequence space of the wire, which the application's SYN or a
// SYN-ACK of a program has begun, and that of the endpoint's own SYN. It is set once, by Begin.
type Map struct {
	ready atomic.Bool
	seq   uint32 // ISN on the wire less ISN of the endpoint
	ts    uint32 // timestamp of the wire's SYN or SYN-ACK less that of the endpoint's SYN
	synTS uint32 // timestamp of the endpoint's SYN
	wsNS  uint8  // shift the endpoint applies to the windows it announces
	ws    uint8  // shift the peer applies: the one that the wire announced

	// What a mini socket has sent the endpoint sends again, from again to before: of more than
	// that it must not hear that it has arrived.
	repeats       atomic.Bool // until then
	again, before atomic.Uint32
}

// Origin is what the wire has in the place of the endpoint's SYN.
type Origin struct {
	ISN, Stamp uint32
	Sent       uint32 // the next sequence number that was not sent
}

// Ready reports whether the endpoint has sent its SYN.
func (x *Map) Ready() bool { return x.ready.Load() }

// Acked is ack, a number of the wire, in the endpoint's space.
func (x *Map) Acked(ack uint32) uint32 { return ack - x.seq }

// Echo is the timestamp of the endpoint's SYN, age milliseconds before.
func (x *Map) Echo(age uint32) uint32 { return x.synTS - age }

// Out rewrites the TCP header t that the endpoint sends. sum is false where the
// checksum field holds the pseudo header only (offloaded): it does not cover
// what changes.
func (x *Map) Out(t packet.TCP, sum bool) {
	e := packet.Editor{TCP: t}
	seq := t.Seq() + x.seq
	if x.repeats.Load() && t.Flags()&packet.FlagRST != 0 {
		seq = x.before.Load() // the peer ignores a reset in front of what it has (RFC 5961 3.2)
	}
	e.Put32(4, seq)
	if x.wsNS != x.ws {
		w := uint64(t.Window()) << x.wsNS >> x.ws
		e.Put16(14, uint16(min(w, 0xffff)))
	}
	for at, o := range t.Options().All() {
		if isTimestamps(o) {
			e.Put32(packet.TCPMinLen+at+2, binary.BigEndian.Uint32(o[2:])+x.ts)
		}
	}
	if sum {
		e.Finish()
	}
}

// In rewrites the TCP header t that arrives for the endpoint. The shim has verified
// the checksum, which is not looked at again.
func (x *Map) In(t packet.TCP) {
	if t.Flags()&packet.FlagACK == 0 {
		return
	}
	if again := x.again.Load(); x.repeats.Load() && packet.After(t.Ack(), again) {
		t.SetAck(again)
		t.Options().Blank(packet.KindSACK)
	}
	t.SetAck(t.Ack() - x.seq)
	for _, o := range t.Options().All() {
		switch {
		case isTimestamps(o):
			sub32(o[6:], x.ts)
		case o.Kind() == packet.KindSACK:
			for edges := o.Value(); len(edges) >= 4; edges = edges[4:] {
				sub32(edges, x.seq)
			}
		}
	}
}

func isTimestamps(o packet.TCPOption) bool {
	return o.Kind() == packet.KindTimestamps && len(o) == packet.TimestampsLen
}

func sub32(b []byte, v uint32) { binary.BigEndian.PutUint32(b, binary.BigEndian.Uint32(b)-v) }

// Begin takes the measure of the endpoint's own SYN, which the caller swallows: o is what the wire has in
// its place, and scale what it was told of windows, if it and the endpoint both shift them.
func (x *Map) Begin(t packet.TCP, o Origin, scale int8) {
	if x.ready.Load() {
		return // it is sent again
	}
	own := packet.ParseTCPOptions(t.Options())
	x.seq, x.ts, x.synTS = o.ISN-t.Seq(), o.Stamp-own.TSVal, own.TSVal
	if scale >= 0 && own.WS >= 0 {
		x.wsNS, x.ws = uint8(own.WS), uint8(scale)
	}
	x.again.Store(o.ISN + 1)
	x.before.Store(o.Sent)
	x.repeats.Store(o.Sent != o.ISN+1)
	x.ready.Store(true)
}

// Sent notes that the endpoint has sent everything before next, on the wire.
func (x *Map) Sent(next uint32) {
	if !x.repeats.Load() {
		return
	}
	if packet.After(next, x.again.Load()) {
		x.again.Store(next)
	}
	if !packet.After(x.before.Load(), next) {
		x.repeats.Store(false)
	}
}
