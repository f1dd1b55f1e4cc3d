package soft

import (
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// responder is the receiving side of a connected queue pair.
//
//	        FIRST              LAST
//	none ─────────► sending ─────────► none      SEND: into the receive
//	  │ ──────────► writing ─────────► none      WRITE: to its address
//	  └─ ONLY ─► none
//
// Only the packet with the expected PSN is executed; those that come earlier wait for their turn (early.go).
type responder struct {
	psn     uint32 // expected
	msn     uint32 // messages completed
	msg     message
	write   write
	nakked  bool   // a NAK or RNR NAK for psn was sent
	seen    uint32 // the last unexpected PSN; while a missing packet is waited for, the highest
	gapAt   int64  // when to send a NAK of psn, 0: psn is not waited for
	early   early
	ack     bool // acknowledge the request at ackAt
	ackAt   uint32
	again   bool // instead acknowledge the repeated request at againAt
	againAt uint32
	nak     bool // send a NAK of psn
	nakWith wire.Syndrome
	dying   bool // go to ERR after that NAK; accept no more requests
	jobs    []job
	stored  []job // READs and atomics, to answer repetitions
	last    int   // index of the next to store
	cnpAt   int64
	begun   bool // COMM_EST was raised
}

// message is the kind of the message being received.
type message uint8

const (
	none message = iota
	sending
	writing
)

// write is the WRITE that is being received.
type write struct {
	region *mr    // nil if it has no bytes
	rest   []byte // the part of the region that is still to be written
	total  uint32 // bytes of the whole WRITE
}

func (r *responder) init(psn uint32, depth int) {
	*r = responder{psn: psn, jobs: r.jobs[:0], stored: make([]job, 0, depth)}
}

// drop discards what is still to be answered.
func (r *responder) drop() {
	r.ack, r.again, r.nak, r.dying, r.msg, r.gapAt = false, false, false, false, none, 0
	r.jobs, r.write = r.jobs[:0], write{}
}

// request handles a request (IBTA vol. 1, 9.7.4.1); the order of checks is that of rxe_resp.
func (q *qp) request(h *wire.Header, payload []byte, from uint16) {
	r := &q.resp
	if r.dying {
		return
	}
	q.heard()
	switch d := wire.PSNDiff(h.PSN, r.psn); {
	case d > 0:
		q.outOfOrder(h, payload, d)
	case d < 0:
		q.cameTwice(h.PSN)
		q.duplicate(h)
	case q.guard.on && q.violates(h, payload):
		q.suspect()
	default:
		nakked := r.nakked
		r.nakked, q.guard.refused = false, false
		q.guard.learn(from)
		q.execute(h, payload)
		if nakked || r.gapAt != 0 || r.early.kept > 0 {
			q.inOrder(h.PSN, nakked)
		}
	}
}

// heard is called for every request. The first one in RTR proves that the peer is connected, even if the message that
// should have said so was lost (IBTA vol. 1, 11.6.3.1).
func (q *qp) heard() {
	if q.resp.begun {
		return
	}
	q.resp.begun = true
	if q.state == verbs.QPSRTR {
		q.vec.dev.async.Notify(verbs.AsyncEvent{Type: verbs.EventCommEst, QP: q})
	}
}

// reply schedules a NAK of the expected PSN, to be sent after the answers to earlier requests.
func (q *qp) reply(s wire.Syndrome) {
	q.resp.nak, q.resp.nakWith = true, s
	q.vec.owe(q)
}

// refuse answers a request that cannot be executed and ends the queue pair (IBTA vol. 1, 9.9.3: responder class C). No
// receive completion reports it, so an event does.
func (q *qp) refuse(s wire.Syndrome) {
	event := verbs.EventQPAccessErr
	if s == wire.NAKInvalidRequest {
		event = verbs.EventQPReqErr
	}
	q.vec.dev.async.Notify(verbs.AsyncEvent{Type: event, QP: q})
	q.end(s)
}

// end is refuse for a message whose receive has completed with the error (class A).
func (q *qp) end(s wire.Syndrome) {
	q.resp.dying = true
	q.reply(s)
}

// execute handles the expected packet.
func (q *qp) execute(h *wire.Header, payload []byte) {
	r, t := &q.resp, h.Opcode.Traits()
	if !q.fits(t, len(payload)) || !q.serves(t) {
		q.refuse(wire.NAKInvalidRequest)
		return
	}
	if t&(wire.Send|wire.HasImm) != 0 && !q.takeRecv() {
		q.notReady(h.PSN)
		return
	}
	ok := false
	switch {
	case t&wire.Send != 0:
		ok = q.executeSend(h, t, payload)
	case t&wire.Write != 0:
		ok = q.executeWrite(h, t, payload)
	case t&wire.Read != 0:
		ok = q.executeRead(h)
	default:
		ok = q.executeAtomic(h)
	}
	if !ok {
		return
	}
	if t&wire.End != 0 {
		r.msn = (r.msn + 1) & 0xffffff
	}
	if t&(wire.Send|wire.Write) == 0 {
		return // the response is the acknowledgement
	}
	r.psn = wire.PSNAdd(r.psn, 1)
	if h.AckReq {
		// Do not include what came after it: once all that the kernel's rxe sent is acknowledged, its timer does nothing, but
		// that timer is what restarts it when it has stopped in the middle of a message (rxe_comp, need_req_skb).
		r.ack, r.ackAt = true, h.PSN
		q.vec.owe(q)
	}
}

// fits checks the packet's place in its message and its length: FIRST and MIDDLE carry a whole MTU, LAST at least a
// byte.
func (q *qp) fits(t wire.Traits, length int) bool {
	r := &q.resp
	var kind message
	switch {
	case t&wire.Send != 0:
		kind = sending
	case t&wire.Write != 0:
		kind = writing
	default: // READ and atomic requests have no payload
		return r.msg == none && length == 0
	}
	if t&wire.Start != 0 && r.msg != none || t&wire.Start == 0 && r.msg != kind {
		return false
	}
	switch {
	case t&wire.End == 0:
		return length == q.mtu
	case t&wire.Start == 0 && length == 0:
		return false
	}
	return length <= q.mtu
}

// notReady sends an RNR NAK: there is no receive for the message.
func (q *qp) notReady(psn uint32) {
	r := &q.resp
	r.nakked, r.seen = true, psn
	q.vec.dev.count.sentRNRNAKs.Add(1)
	q.reply(wire.RNR | wire.Syndrome(q.attr.MinRNRTimer))
}

func (q *qp) executeSend(h *wire.Header, t wire.Traits, payload []byte) bool {
	r := &q.resp
	r.msg = sending
	if status := q.cur.scatter(q.pd, payload); status != verbs.WCSuccess {
		q.received(&verbs.WC{Status: status, Opcode: verbs.WCRecv, SrcQP: q.attr.DestQPNum})
		q.end(pickNAK(status))
		return false
	}
	if t&wire.End == 0 {
		return true
	}
	r.msg = none
	wc := verbs.WC{Opcode: verbs.WCRecv, ByteLen: q.cur.got, SrcQP: q.attr.DestQPNum}
	switch {
	case t&wire.HasImm != 0:
		wc.Flags, wc.ImmData = verbs.WCWithImm, h.Imm
	case t&wire.HasIETH != 0:
		wc.Flags, wc.ImmData = verbs.WCWithInv, h.InvRKey
		if !q.pd.invalidate(h.InvRKey, true) {
			q.received(&verbs.WC{Status: verbs.WCRemInvReqErr, Opcode: verbs.WCRecv})
			q.end(wire.NAKRemoteAccess)
			return false
		}
	}
	q.received(&wc)
	return true
}

// pickNAK returns the NAK for a message that its receive cannot take.
func pickNAK(status verbs.WCStatus) wire.Syndrome {
	if status == verbs.WCLocLenErr {
		return wire.NAKInvalidRequest
	}
	return wire.NAKRemoteOperational
}

func (q *qp) executeWrite(h *wire.Header, t wire.Traits, payload []byte) bool {
	if s := q.put(h, t, payload); s != wire.ACK {
		q.refuse(s)
		return false
	}
	if t&wire.End != 0 && t&wire.HasImm != 0 {
		q.received(&verbs.WC{
			Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, ImmData: h.Imm, ByteLen: q.resp.write.total,
			SrcQP: q.attr.DestQPNum,
		})
	}
	return true
}

// target returns ACK if a packet of a WRITE with length bytes may be written, or else why it is refused. It changes
// nothing.
func (q *qp) target(h *wire.Header, t wire.Traits, length int) wire.Syndrome {
	w := &q.resp.write
	left := len(w.rest)
	if t&wire.Start != 0 {
		left = int(h.Length)
	}
	switch {
	case length > left || t&wire.End != 0 && length != left || t&wire.End == 0 && length == left || left > maxMsg:
		return wire.NAKInvalidRequest
	case t&wire.Start == 0:
		if !w.region.grants(verbs.AccessRemoteWrite) { // closed meanwhile
			return wire.NAKRemoteAccess
		}
	case left > 0 && q.pd.remote(h.RKey, h.VA, uint64(left), verbs.AccessRemoteWrite) == nil:
		return wire.NAKRemoteAccess
	}
	return wire.ACK
}

// put writes what a packet carries, or returns why it is refused.
func (q *qp) put(h *wire.Header, t wire.Traits, payload []byte) wire.Syndrome {
	if s := q.target(h, t, len(payload)); s != wire.ACK {
		return s
	}
	w := &q.resp.write
	if t&wire.Start != 0 {
		w.region, w.rest, w.total = nil, nil, h.Length
		if h.Length > 0 {
			if w.region = q.pd.region(h.RKey, verbs.AccessRemoteWrite); w.region == nil { // closed meanwhile
				return wire.NAKRemoteAccess
			}
			w.rest = w.region.span(h.VA, uint64(h.Length))
		}
	}
	w.rest = w.rest[copy(w.rest, payload):]
	q.resp.msg = writing
	if t&wire.End != 0 {
		q.resp.msg, w.region, w.rest = none, nil, nil
	}
	return wire.ACK
}

// serves reports whether the queue pair grants this kind of request at all. If not, the request is treated like a
// reserved opcode (IBTA vol. 1, 9.7.4.1.2; check_op_valid of rxe_resp).
func (q *qp) serves(t wire.Traits) bool {
	need := verbs.AccessRemoteAtomic
	switch {
	case t&wire.Send != 0:
		return true
	case t&wire.Write != 0:
		need = verbs.AccessRemoteWrite
	case t&wire.Read != 0:
		need = verbs.AccessRemoteRead
	}
	return q.attr.Access&need != 0
}
