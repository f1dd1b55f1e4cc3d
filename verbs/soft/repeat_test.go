package soft

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// peerPacket lets the peer that is only packets send one to a queue pair.
func (h *hostile) peerPacket(q *hostileQP, hdr wire.Header, payload []byte) {
	h.peerSend(q, hdr, payload)
	h.m.w.run(20*time.Microsecond, nil)
}

func (h *hostile) peerSend(q *hostileQP, hdr wire.Header, payload []byte) {
	hdr.Migrated, hdr.PKey, hdr.DestQP = true, 0xffff, q.Num()
	h.send(hostileAddr, 0xc001, h.seal(hostileAddr, 0xc001, &hdr, payload, false))
}

// acks are the PSNs of the acknowledgements that the device has sent, among
// what the network's marks have caused.
func (q *hostileQP) acks(t *testing.T) (acked []uint32) {
	for _, s := range q.sent {
		if s.Opcode == wire.CNP {
			continue
		}
		require.Equal(t, wire.RCAcknowledge, s.Opcode)
		require.Equal(t, wire.ACK, s.Syndrome)
		acked = append(acked, s.PSN)
	}
	q.sent = nil
	return acked
}

// A requester that repeats a message is told how far its repetition has come,
// not that the message arrived long ago: rxe does not survive that.
func TestRepeatedMessageIsAcknowledgedInStep(t *testing.T) {
	h := newHostile(t, 1)
	q := h.qps[0]
	message := []wire.Header{
		{Opcode: wire.RCWriteFirst, VA: h.granted.addr(0), RKey: h.granted.RKey(), Length: 2*256 + 5},
		{Opcode: wire.RCWriteMiddle},
		{Opcode: wire.RCWriteLast, AckReq: true},
	}
	play := func(ackMiddle bool) (acked []uint32) {
		for i, hdr := range message {
			hdr.PSN = wire.PSNAdd(hostilePSN, i)
			hdr.AckReq = hdr.AckReq || ackMiddle && i == 1
			n := 256
			if i == 2 {
				n = 5
			}
			h.peerPacket(q, hdr, make([]byte, n))
			acked = append(acked, q.acks(t)...)
		}
		return acked
	}
	last := wire.PSNAdd(hostilePSN, 2)
	require.Equal(t, []uint32{last}, play(false))
	require.Equal(t, []uint32{last}, play(false))
	require.Equal(t, []uint32{wire.PSNAdd(hostilePSN, 1), last}, play(true))
}

// What asks for an acknowledgement is acknowledged, not what came after it.
func TestAcknowledgementIsOfWhatAsked(t *testing.T) {
	h := newHostile(t, 1)
	h.m.w.net.scatter = 0 // all in one turn, in order
	q := h.qps[0]
	for i := range 5 {
		h.peerSend(q, wire.Header{
			Opcode: wire.RCWriteOnly, PSN: wire.PSNAdd(hostilePSN, i), AckReq: i == 1 || i == 3,
			VA: h.granted.addr(0), RKey: h.granted.RKey(), Length: 8,
		}, make([]byte, 8))
	}
	h.m.w.run(time.Millisecond, nil)
	acked := q.acks(t)
	require.NotEmpty(t, acked)
	require.Equal(t, wire.PSNAdd(hostilePSN, 3), acked[len(acked)-1])
}

// What is asked for again is asked for up to the end of the request it belongs
// to, however small the window has become meanwhile: rxe forgets what comes
// before a repetition.
func TestReadIsRepeatedToItsEnd(t *testing.T) {
	h := newHostile(t, 1)
	q := h.qps[0]
	require.NoError(t, q.PostSend(&verbs.SendWR{
		Opcode: verbs.WRRDMARead, RemoteAddr: 0x1000, RKey: 7, SGList: []verbs.SGE{h.local.sge(0, 8*256)},
	}))
	h.m.w.run(20*time.Microsecond, nil)
	require.NotEmpty(t, q.sent)
	ends := map[uint64]bool{}
	for _, s := range q.sent {
		require.Equal(t, wire.RCReadRequest, s.Opcode)
		ends[s.VA+uint64(s.Length)] = true
	}
	require.GreaterOrEqual(t, q.sent[0].Length, uint32(3*256))
	h.peerPacket(q, wire.Header{Opcode: wire.RCReadResponseFirst, Syndrome: wire.ACK, PSN: q.sent[0].PSN}, make([]byte, 256))
	first := q.sent[0]
	q.sent = nil
	h.m.w.run(time.Second, nil)
	require.GreaterOrEqual(t, len(q.sent), 2, "repetitions")
	for _, s := range q.sent {
		require.True(t, ends[s.VA+uint64(s.Length)], "request at %#x of %d bytes", s.VA, s.Length)
	}
	require.Equal(t, first.VA+256, q.sent[0].VA)
	require.Equal(t, wire.PSNAdd(first.PSN, 1), q.sent[0].PSN)
}
