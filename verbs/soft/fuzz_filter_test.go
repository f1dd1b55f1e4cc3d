package soft

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// drops is the sum of the reasons for which packets are dropped.
func (s *Stats) drops() [8]uint64 {
	return [8]uint64{
		s.DropMalformed, s.DropNoQP, s.DropSource, s.DropICRC, s.DropKey, s.DropNoRecv, s.DropUnexpected, s.DropStray,
	}
}

// Packets that are not for the device, or not from the peer, are counted under
// one reason each, get no answer, and change nothing.
func TestHostileFilter(t *testing.T) {
	h := newHostile(t, 1)
	h.m.w.net.scatter = 0
	h.m.w.run(time.Millisecond, nil)
	const malformed, noQP, source, icrc, key = 0, 1, 2, 3, 4
	rc, uc, ud := h.qps[0], h.qps[1], h.qps[2]
	write := func(qpn uint32, op wire.Opcode) wire.Header {
		return wire.Header{
			Opcode: op, Migrated: true, PKey: 0xffff, DestQP: qpn, PSN: hostilePSN, AckReq: true, QKey: hostileQKey,
			VA: h.granted.addr(0), RKey: h.granted.RKey(), Length: 16,
		}
	}
	before := string(h.granted.bytes())
	for _, c := range []struct {
		name   string
		reason int
		from   netip.Addr
		hdr    wire.Header
		change func(hdr *wire.Header)
		spoil  func(b []byte) []byte
	}{
		{name: "stranger", reason: source, from: strangerAddr, hdr: write(rc.Num(), wire.RCWriteOnly)},
		{name: "victim", reason: source, hdr: write(h.victim[0].qp.Num(), wire.RCWriteOnly)},
		{name: "stranger to UC", reason: source, from: strangerAddr, hdr: write(uc.Num(), wire.UCWriteOnly)},
		{name: "CNP of a stranger", reason: source, from: strangerAddr, hdr: write(rc.Num(), wire.CNP)},
		{name: "generation", reason: noQP, hdr: write(rc.Num()^1<<18, wire.RCWriteOnly)},
		{name: "slot", reason: noQP, hdr: write(rc.Num()+1<<10, wire.RCWriteOnly)},
		{name: "QP 0", reason: noQP, hdr: write(0, wire.RCWriteOnly)},
		{name: "QP 1", reason: noQP, hdr: write(1, wire.UDSendOnly)},
		{name: "vector", reason: noQP, hdr: write(rc.Num()|15, wire.RCWriteOnly)},
		{name: "UC to RC", reason: noQP, hdr: write(rc.Num(), wire.UCWriteOnly)},
		{name: "RC to UC", reason: noQP, hdr: write(uc.Num(), wire.RCWriteOnly)},
		{name: "RC to UD", reason: noQP, hdr: write(ud.Num(), wire.RCWriteOnly)},
		{name: "UD to RC", reason: noQP, hdr: write(rc.Num(), wire.UDSendOnly)},
		{name: "response in RTR", reason: noQP, hdr: write(h.qps[3].Num(), wire.RCAcknowledge)},
		{name: "INIT", reason: noQP, hdr: write(h.qps[4].Num(), wire.RCWriteOnly)},
		{name: "ERR", reason: noQP, hdr: write(h.qps[5].Num(), wire.RCWriteOnly)},
		{name: "RESET", reason: noQP, hdr: write(h.qps[6].Num(), wire.RCWriteOnly)},
		{name: "partition", reason: key, hdr: write(rc.Num(), wire.RCWriteOnly), change: func(h *wire.Header) { h.PKey = 0x8001 }},
		{name: "Q_Key", reason: key, hdr: write(ud.Num(), wire.UDSendOnly), change: func(h *wire.Header) { h.QKey++ }},
		{name: "opcode", reason: malformed, hdr: write(rc.Num(), 0x1f)},
		{name: "version", reason: malformed, hdr: write(rc.Num(), wire.RCWriteOnly), spoil: func(b []byte) []byte { b[1] |= 1; return b }},
		{name: "truncated", reason: malformed, hdr: write(rc.Num(), wire.RCWriteOnly), spoil: func(b []byte) []byte { return b[:20] }},
		{name: "empty", reason: malformed, hdr: write(rc.Num(), wire.RCWriteOnly), spoil: func(b []byte) []byte { return b[:0] }},
		{name: "ICRC", reason: icrc, hdr: write(rc.Num(), wire.RCWriteOnly), spoil: func(b []byte) []byte { b[len(b)-3] ^= 4; return b }},
		{name: "payload", reason: icrc, hdr: write(rc.Num(), wire.RCWriteOnly), spoil: func(b []byte) []byte { b[30] ^= 4; return b }},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !c.from.IsValid() {
				c.from = hostileAddr
			}
			if c.change != nil {
				c.change(&c.hdr)
			}
			data := h.seal(c.from, 0xc123, &c.hdr, make([]byte, 16), false)
			if c.spoil != nil {
				data = c.spoil(data)
			}
			stats := h.dev.dev.Stats()
			want := stats.drops()
			want[c.reason]++
			h.send(c.from, 0xc123, data)
			h.m.w.run(10*time.Millisecond, nil)
			after := h.dev.dev.Stats()
			require.Equal(t, want, after.drops(), "malformed, no QP, source, ICRC, key, no receive, unexpected, stray")
			require.Equal(t, stats.TxPackets, after.TxPackets, "an answer")
		})
	}
	require.Equal(t, before, string(h.granted.bytes()))
	h.check()
}

// The first request that is refused is the last that is executed, even if the
// same comes again in a better form, and more with it.
func TestHostileNothingAfterRefusal(t *testing.T) {
	h := newHostile(t, 1)
	h.m.w.net.scatter = 0
	before := string(h.granted.bytes())
	for _, c := range []struct {
		region *modelRegion
		psn    uint32
	}{{h.private, 0}, {h.granted, 0}, {h.granted, 1}} {
		hdr := wire.Header{
			Opcode: wire.RCWriteOnly, Migrated: true, PKey: 0xffff, DestQP: h.qps[0].Num(), PSN: hostilePSN + c.psn, AckReq: true,
			VA: c.region.addr(0), RKey: c.region.RKey(), Length: 16,
		}
		h.send(hostileAddr, 0xc123, h.seal(hostileAddr, 0xc123, &hdr, make([]byte, 16), false))
	}
	h.refused(before)
}

// A WRITE of which only the end is beyond the region is refused with its first packet.
func TestHostileLongWrite(t *testing.T) {
	h := newHostile(t, 1)
	before := string(h.granted.bytes())
	hdr := wire.Header{
		Opcode: wire.RCWriteFirst, Migrated: true, PKey: 0xffff, DestQP: h.qps[0].Num(), PSN: hostilePSN, AckReq: true,
		VA: h.granted.addr(0), RKey: h.granted.RKey(), Length: uint32(2 * len(h.granted.Bytes())),
	}
	h.send(hostileAddr, 0xc123, h.seal(hostileAddr, 0xc123, &hdr, make([]byte, 256), false))
	h.refused(before)
}

// What waits for its answer is bounded: one READ or atomic more than was agreed on
// is refused, and has no effect.
func TestHostileReadsAreBounded(t *testing.T) {
	for _, op := range []wire.Opcode{wire.RCReadRequest, wire.RCFetchAdd} {
		h := newHostile(t, 1)
		h.m.w.net.scatter = 0 // all in one turn, in order
		before := string(h.granted.bytes())
		hdr := wire.Header{
			Opcode: wire.RCReadRequest, Migrated: true, PKey: 0xffff, DestQP: h.qps[0].Num(), PSN: hostilePSN, AckReq: true,
			VA: h.granted.addr(0), RKey: h.granted.RKey(), Length: 4096,
		}
		for i := range 3 {
			if i == 2 {
				hdr.Opcode, hdr.SwapAdd = op, 1
			}
			h.send(hostileAddr, 0xc123, h.seal(hostileAddr, 0xc123, &hdr, nil, false))
			hdr.PSN = wire.PSNAdd(hdr.PSN, 4096/256)
		}
		h.refused(before)
	}
}

// A READ response of the wrong length, or one where an atomic's is due, ends
// the connection: the work request fails, nothing is written beyond its memory.
func TestHostileBadResponse(t *testing.T) {
	for _, n := range []int{0, 99, 101, 104, 256} {
		h := newHostile(t, 1)
		q := h.qps[0]
		require.NoError(t, q.PostSend(&verbs.SendWR{
			WRID: 7, Opcode: verbs.WRRDMARead, SGList: []verbs.SGE{h.local.sge(h.local.size-100, 100)}, RemoteAddr: 1, RKey: 2,
		}))
		h.m.w.run(time.Millisecond, func() bool { return len(q.sent) > 0 })
		hdr := wire.Header{
			Opcode: wire.RCReadResponseOnly, Migrated: true, PKey: 0xffff, DestQP: q.Num(), PSN: hostilePSN, Syndrome: wire.ACK,
		}
		h.send(hostileAddr, 0xc123, h.seal(hostileAddr, 0xc123, &hdr, make([]byte, n), false))
		h.m.w.run(time.Millisecond, nil)
		require.Equal(t, verbs.QPSErr, q.State(), "%d bytes instead of 100", n)
		require.Equal(t, verbs.WCBadRespErr, h.statuses[len(h.statuses)-1])
		h.check()
	}
}

// A flood costs time, not memory.
func TestHostileFlood(t *testing.T) {
	h := newHostile(t, 1)
	v := h.dev.loops[0].driver.(*driver).v
	hdr := wire.Header{
		Opcode: wire.RCReadRequest, Migrated: true, PKey: 0xffff, DestQP: h.qps[0].Num(), PSN: hostilePSN, AckReq: true,
		VA: h.granted.addr(0), RKey: h.granted.RKey(), Length: 4096,
	}
	for round := range 50 {
		for i := range 400 {
			port := uint16(0xc000 + round*400 + i)
			hdr.PSN = (hostilePSN + uint32(i%16)) & 0xffffff
			hdr.VA = h.granted.addr(i % 16 * 256)
			hdr.Length = uint32(4096 - i%16*256)
			h.send(hostileAddr, port, h.seal(hostileAddr, port, &hdr, nil, false))
		}
		h.m.w.run(10*time.Microsecond, nil)
		checkInvariants(t, h.qps[0].QP)
	}
	require.LessOrEqual(t, len(v.flows), pathLimit)
	require.LessOrEqual(t, len(v.paths), pathLimit)
	require.LessOrEqual(t, v.timers.Len(), 4*len(h.qps)+100)
	require.LessOrEqual(t, cap(v.ready)+cap(v.spare)+cap(v.acks), 64)
	require.Less(t, h.m.w.net.stats.sent, 50*1000, "packets that a flood makes the device send")
	h.check()
}
