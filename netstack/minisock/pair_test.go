package minisock

import (
	"encoding/binary"
	"time"

	"github.com/smcgw/smcgw/packet"
)

const testTimeout = 40 * time.Millisecond

// header makes the TCP header of seg.
func (seg Segment) header() packet.TCP {
	b := make(packet.TCP, packet.TCPMinLen, packet.TCPMaxLen)
	b.SetSeq(seg.Seq)
	b.SetAck(seg.Ack)
	b.SetFlags(seg.Flags)
	b.SetWindow(seg.Window)
	b = append(b, packet.KindNOP, packet.KindNOP, packet.KindTimestamps, packet.TimestampsLen)
	b = binary.BigEndian.AppendUint32(b, seg.TSVal)
	b = binary.BigEndian.AppendUint32(b, seg.TSEcr)
	b.SetHeaderLen(len(b))
	return b
}

// newPair returns two ends of one connection, of which the first owes an acknowledgement.
func newPair(now time.Duration, iss, irs uint32, scale uint8) (a, b *Sock) {
	a = New(Config{
		Seq: iss + 1, Ack: irs + 1, Owed: true, Window: 64 << 10, Scale: scale, PeerScale: 7,
		Stamp: 1<<32 - 5, Recent: 900, Timeout: testTimeout, Now: now,
	})
	b = New(Config{
		Seq: irs + 1, Ack: iss + 1, Window: 64 << 10, Scale: 7, PeerScale: scale,
		Stamp: 900, Recent: 1<<32 - 5, Timeout: testTimeout, Now: now,
	})
	return a, b
}
