package segment

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/smcgw/smcgw/packet"
)

// Map holds the differences between the sequence space of the wire, which began with the application's SYN or a
// program's SYN-ACK, and that of the endpoint, which began with its own SYN. Begin sets it once.
type Map struct {
	ready atomic.Bool
	seq   uint32 // ISN on the wire minus ISN of the endpoint
	ts    uint32 // timestamp of the wire's SYN or SYN-ACK minus that of the endpoint's SYN
	synTS uint32 // timestamp of the endpoint's SYN
	wsNS  uint8  // shift that the endpoint applies to the windows it announces
	ws    uint8  // shift that the peer applies, as announced on the wire

	// The endpoint resends what a mini socket has already sent. It has got as far as again, and is done at before.
	// Until then it must not see an acknowledgement beyond again, of bytes that it has not sent itself.
	repeats       atomic.Bool // until again reaches before
	again, before atomic.Uint32
}

// Origin is what is on the wire in place of the endpoint's SYN.
type Origin struct {
	ISN, Stamp uint32
	Sent       uint32 // the first sequence number that was never sent
}

// Ready reports whether the endpoint has sent its SYN.
func (x *Map) Ready() bool { return x.ready.Load() }

// Acked converts ack from the wire to the endpoint's space.
func (x *Map) Acked(ack uint32) uint32 { return ack - x.seq }

// Echo returns the timestamp age milliseconds before the endpoint's SYN.
func (x *Map) Echo(age uint32) uint32 { return x.synTS - age }

// Out rewrites the TCP header t of a segment that the endpoint sends. sum is false if the checksum field holds only the
// sum of the pseudo header (offloaded), which the changes do not affect.
func (x *Map) Out(t packet.TCP, sum bool) {
	e := packet.Editor{TCP: t}
	seq := t.Seq() + x.seq
	if x.repeats.Load() && t.Flags()&packet.FlagRST != 0 {
		seq = x.before.Load() // the peer ignores a reset before what it has received (RFC 5961 3.2)
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

// In rewrites the TCP header t of a segment that arrives for the endpoint. It does not update the checksum, which the
// shim has verified and nothing checks again.
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

// Begin sets the differences from the endpoint's own SYN, which the caller swallows. o is what is on the wire in its
// place. scale is the window scale announced on the wire, which is used if the endpoint scales its windows, too.
func (x *Map) Begin(t packet.TCP, o Origin, scale int8) {
	if x.ready.Load() {
		return // a retransmission
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

// Sent records that the endpoint has sent everything before next, a sequence number of the wire.
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
