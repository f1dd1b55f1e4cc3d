package netstack

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/smcgw/smcgw/packet"
)

// translation is the difference between the sequence space that the wire sees, which the
// application's SYN or a SYN-ACK of a program has begun, and that of gVisor's own SYN, which
// the wire does not see. It is set once, before ready.
type translation struct {
	ready atomic.Bool
	seq   uint32 // ISN on the wire less ISN of gVisor
	ts    uint32 // timestamp of the wire's SYN or SYN-ACK less that of gVisor's SYN
	synTS uint32 // timestamp of gVisor's SYN
	wsNS  uint8  // shift gVisor applies to the windows it announces
	ws    uint8  // shift the peer applies: the one that the wire announced

	// What a mini socket has sent the endpoint sends again, from again to before: of more than
	// that it must not hear that it has arrived.
	repeats       atomic.Bool // until then
	again, before atomic.Uint32
}

// out rewrites the TCP header t that gVisor sends. sum is false where the
// checksum field holds the pseudo header only (offloaded): it does not cover
// what changes.
func (x *translation) out(t packet.TCP, sum bool) {
	e := packet.Editor{TCP: t}
	e.Put32(4, t.Seq()+x.seq)
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

// in rewrites the TCP header t that arrives for gVisor. The shim has verified
// the checksum, which is not looked at again.
func (x *translation) in(t packet.TCP) {
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

// begin takes the measure of gVisor's own SYN, which the caller swallows: o is what the wire has in
// its place, and scale what it was told of windows, if it and gVisor both shift them.
func (x *translation) begin(t packet.TCP, o origin, scale int8) {
	if x.ready.Load() {
		return // gVisor sends it again
	}
	own := packet.ParseTCPOptions(t.Options())
	x.seq, x.ts, x.synTS = o.isn-t.Seq(), o.stamp-own.TSVal, own.TSVal
	if scale >= 0 && own.WS >= 0 {
		x.wsNS, x.ws = uint8(own.WS), uint8(scale)
	}
	x.again.Store(o.isn + 1)
	x.before.Store(o.sent)
	x.repeats.Store(o.sent != o.isn+1)
	x.ready.Store(true)
}

// sent notes that the endpoint has sent everything before next, on the wire.
func (x *translation) sent(next uint32) {
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
