package soft

import (
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// transmitUC sends messages in order; each completes when it is sent.
func (q *qp) transmitUC() {
	r := &q.req
	for budget := turnPackets; r.idx != q.sq.Posted(); budget-- {
		if budget == 0 {
			q.vec.schedule(q)
			return
		}
		w := q.sq.Slot(r.idx)
		if !w.begun && !q.begin(w) {
			return
		}
		if w.packets > 0 {
			h := q.header(wire.PSNAdd(w.first, int(r.k)))
			off := r.k * uint32(q.mtu)
			n := min(w.length-off, uint32(q.mtu))
			if !q.gather(w, off, n) {
				q.failOldest(verbs.WCLocProtErr)
				return
			}
			q.message(w, &h)
			q.vec.tx.add(q.path, &h, q.vec.parts, int(n))
			r.high = wire.PSNAdd(r.high, 1)
			r.k++
		}
		if r.k == w.packets {
			r.idx, r.k = r.idx+1, 0
			q.finish(verbs.WCSuccess)
		}
	}
}

// unreliable handles a packet of an unreliable connection. A message with a gap is dropped as a whole; its receive
// serves the next one (IBTA vol. 1, 9.8.2.2).
func (q *qp) unreliable(h *wire.Header, payload []byte) {
	r, t := &q.resp, h.Opcode.Traits()
	q.heard()
	expected := r.psn
	if d := wire.PSNDiff(h.PSN, expected); d < 0 && d >= -ucOld {
		q.vec.dev.count.duplicates.Add(1)
		return
	}
	r.psn = wire.PSNAdd(h.PSN, 1)
	if t&wire.Start != 0 {
		r.msg = none
		q.cur.got = 0
	} else if h.PSN != expected {
		r.msg = none
	}
	if !q.fits(t, len(payload)) || !q.serves(t) || t&(wire.Send|wire.HasImm) != 0 && !q.takeRecv() || !q.place(h, t, payload) {
		r.msg = none
		q.vec.dev.count.dropUnexpected.Add(1)
	}
}

// ucOld is how far behind the expected PSN a packet still counts as repeated or delayed by the network. It is much less
// than half of all PSNs, so that a peer that was cut off for long is accepted again immediately.
const ucOld = 1 << 15

// place executes a packet; false drops the message.
func (q *qp) place(h *wire.Header, t wire.Traits, payload []byte) bool {
	r := &q.resp
	wc := verbs.WC{Opcode: verbs.WCRecv, SrcQP: q.attr.DestQPNum}
	if t&wire.Send != 0 {
		r.msg = sending
		switch status := q.cur.scatter(q.pd, payload); status {
		case verbs.WCSuccess:
		case verbs.WCLocProtErr:
			q.spoiled(status)
			return false
		default:
			return false
		}
		wc.ByteLen = q.cur.got
	} else {
		if q.put(h, t, payload) != wire.ACK {
			return false
		}
		wc.Opcode, wc.ByteLen = verbs.WCRecvRDMAWithImm, r.write.total
	}
	if t&wire.End == 0 {
		return true
	}
	r.msg = none
	if t&wire.HasImm != 0 {
		wc.Flags, wc.ImmData = verbs.WCWithImm, h.Imm
	}
	if t&(wire.Send|wire.HasImm) != 0 {
		q.received(&wc)
	}
	return true
}
