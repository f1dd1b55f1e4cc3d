package soft

import (
	"encoding/binary"
	"net/netip"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// grhLen is the room for the global route header before the payload of a received datagram (ibv_create_ah_from_wc(3)).
const grhLen = 40

// udDest is the destination of a datagram.
type udDest struct {
	av   av
	qpn  uint32
	qkey uint32
}

// transmitUD sends datagrams; each completes when it is sent.
func (q *qp) transmitUD() {
	r := &q.req
	for budget := turnPackets; r.idx != q.sq.Posted(); budget-- {
		if budget == 0 {
			q.vec.schedule(q)
			return
		}
		w := q.sq.Slot(r.idx)
		switch {
		case w.length > uint32(q.mtu): // IBTA vol. 1, 10.8.2.2; rxe drops it silently
			q.failOldest(verbs.WCLocLenErr)
			return
		case !q.gather(w, 0, w.length):
			q.failOldest(verbs.WCLocProtErr)
			return
		}
		h := wire.Header{
			Opcode: wire.UDSendOnly, Migrated: true, PKey: 0xffff, DestQP: w.dest.qpn, PSN: r.high,
			QKey: w.dest.qkey, SrcQP: q.num, Imm: w.imm,
		}
		if w.op == verbs.WRSendWithImm {
			h.Opcode = wire.UDSendOnlyImm
		}
		if w.dest.qkey&(1<<31) != 0 { // this selects the queue pair's own (IBTA vol. 1, 10.2.5)
			h.QKey = q.attr.QKey
		}
		q.vec.tx.add(q.vec.pathTo(&w.dest.av, w.dest.qpn), &h, q.vec.parts, int(w.length))
		r.high = wire.PSNAdd(r.high, 1)
		r.idx++
		q.finish(verbs.WCSuccess)
	}
}

// datagram handles a received datagram. Without a receive, or if it is too small, the datagram is dropped: no peer can
// take down the queue pair by sending.
func (q *qp) datagram(h *wire.Header, payload []byte, d *datagram) {
	if !q.takeRecv() {
		q.vec.dev.count.dropNoRecv.Add(1)
		return
	}
	q.cur.got = 0
	if q.cur.room() < uint64(grhLen+len(payload)) {
		q.vec.dev.count.dropNoRecv.Add(1)
		return
	}
	var grh [grhLen]byte
	putGRH(&grh, d.src.Addr(), q.pd.dev.cfg.Addrs[d.local], len(d.data))
	wc := verbs.WC{Opcode: verbs.WCRecv, Flags: verbs.WCGRH, SrcQP: h.SrcQP}
	if h.Opcode == wire.UDSendOnlyImm {
		wc.Flags |= verbs.WCWithImm
		wc.ImmData = h.Imm
	}
	for _, part := range [...][]byte{grh[:], payload} {
		if status := q.cur.scatter(q.pd, part); status != verbs.WCSuccess {
			q.spoiled(status)
			return
		}
	}
	wc.ByteLen = q.cur.got
	q.received(&wc)
}

// spoiled completes a receive whose memory is not there. That is a local error, whatever the peer sent, and ends the
// queue pair (IBTA vol. 1, 10.10.2.2).
func (q *qp) spoiled(status verbs.WCStatus) {
	q.received(&verbs.WC{Status: status, Opcode: verbs.WCRecv})
	q.vec.dev.count.qpErrors.Add(1)
	q.toErr()
}

// putGRH writes the IP header, which replaces the global route header on RoCEv2. An IPv4 header is in the last 20
// bytes, after zeros (IBTA vol. 1, annex A17.4.5.1). A socket does not see the received header, so this one is
// synthesized: TTL and traffic class are not those of the packet.
func putGRH(b *[grhLen]byte, src, dst netip.Addr, udpPayload int) {
	const protoUDP, ttl = 17, 64
	if src.Is4() {
		ip := b[20:]
		ip[0] = 0x45
		binary.BigEndian.PutUint16(ip[2:], uint16(20+8+udpPayload))
		ip[6] = 0x40
		ip[8], ip[9] = ttl, protoUDP
		s, d := src.As4(), dst.As4()
		copy(ip[12:], s[:])
		copy(ip[16:], d[:])
		return
	}
	b[0] = 0x60
	binary.BigEndian.PutUint16(b[4:], uint16(8+udpPayload))
	b[6], b[7] = protoUDP, ttl
	s, d := src.As16(), dst.As16()
	copy(b[8:], s[:])
	copy(b[24:], d[:])
}
