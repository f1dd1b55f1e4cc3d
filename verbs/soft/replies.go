package soft

import (
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// job is a READ or an atomic to be answered. It is kept afterwards: a repeated request is answered from it, so that an
// atomic is not executed again.
type job struct {
	psn     uint32
	packets uint32 // PSNs
	sent    uint32
	msn     uint32
	key     uint32
	length  uint32
	addr    uint64
	orig    uint64 // atomic: the previous value
	atomic  bool
	again   bool // repeated
}

// keep stores a job for repetitions, replacing the oldest.
func (r *responder) keep(j job) {
	switch {
	case cap(r.stored) == 0:
		return
	case len(r.stored) < cap(r.stored):
		r.stored = append(r.stored, j)
		return
	}
	r.stored[r.last] = j
	r.last = (r.last + 1) % len(r.stored)
}

// find returns the most recent stored job that PSN psn belongs to: an earlier one may be a whole PSN cycle old.
func (r *responder) find(psn uint32) *job {
	n := len(r.stored)
	for back := 1; back <= n; back++ {
		j := &r.stored[(r.last+n-back)%n]
		if d := wire.PSNDiff(psn, j.psn); d >= 0 && uint32(d) < j.packets {
			return j
		}
	}
	return nil
}

// work queues a job; it returns false if the peer exceeds the agreed number.
func (q *qp) work(j job) bool {
	r := &q.resp
	if !q.room() {
		q.refuse(wire.NAKInvalidRequest)
		return false
	}
	r.jobs = append(r.jobs, j)
	r.keep(j)
	r.psn = wire.PSNAdd(r.psn, int(j.packets))
	q.vec.owe(q)
	return true
}

// room reports whether the peer may ask for one more READ or atomic. If a new request exceeds the agreed number, its
// repeated ones must have been answered before (the network has delayed or duplicated them), so one of those is
// dropped.
func (q *qp) room() bool {
	r := &q.resp
	if len(r.jobs) < int(q.attr.MaxDestRDAtomic) {
		return true
	}
	for i := range r.jobs {
		if r.jobs[i].again {
			r.jobs = append(r.jobs[:i], r.jobs[i+1:]...)
			return true
		}
	}
	return false
}

func (q *qp) executeRead(h *wire.Header) bool {
	switch {
	case h.Length > maxMsg:
		q.refuse(wire.NAKInvalidRequest)
		return false
	case h.Length > 0 && q.pd.remote(h.RKey, h.VA, uint64(h.Length), verbs.AccessRemoteRead) == nil:
		q.refuse(wire.NAKRemoteAccess)
		return false
	}
	return q.work(job{
		psn: h.PSN, packets: packetsOf(h.Length, q.mtu), msn: (q.resp.msn + 1) & 0xffffff,
		key: h.RKey, addr: h.VA, length: h.Length,
	})
}

func (q *qp) executeAtomic(h *wire.Header) bool {
	if h.VA%8 != 0 || !q.room() {
		q.refuse(wire.NAKInvalidRequest)
		return false
	}
	b := q.pd.remote(h.RKey, h.VA, 8, verbs.AccessRemoteAtomic)
	if b == nil {
		q.refuse(wire.NAKRemoteAccess)
		return false
	}
	w := word(b)
	orig := w.Load()
	if h.Opcode == wire.RCFetchAdd {
		orig = w.Add(h.SwapAdd) - h.SwapAdd
	} else {
		for orig == h.Compare && !w.CompareAndSwap(orig, h.SwapAdd) {
			orig = w.Load()
		}
	}
	return q.work(job{psn: h.PSN, packets: 1, msn: (q.resp.msn + 1) & 0xffffff, orig: orig, atomic: true})
}

// duplicate answers a request that was executed before (IBTA vol. 1, 9.7.5.1.3):
// SEND and WRITE are acknowledged again, READ is repeated, an atomic is
// answered from what was stored.
//
// The acknowledgement is of the repeated packet, and only if that asks for one. Acknowledging all that has arrived,
// before the requester has repeated it, would save time but hangs the kernel's rxe: it then completes a message that it
// is still sending and never finds its place in the send queue again (rxe_comp, check_psn).
func (q *qp) duplicate(h *wire.Header) {
	r, t := &q.resp, h.Opcode.Traits()
	q.vec.dev.count.duplicates.Add(1)
	if t&(wire.Send|wire.Write) != 0 {
		if h.AckReq {
			r.again, r.againAt = true, h.PSN
			q.vec.owe(q)
		}
		return
	}
	s := r.find(h.PSN)
	if s == nil || s.atomic != (t&wire.Read == 0) {
		return
	}
	again := *s
	if !s.atomic {
		off := uint32(wire.PSNDiff(h.PSN, s.psn)) * uint32(q.mtu)
		if h.RKey != s.key || h.VA != s.addr+uint64(off) || h.Length > s.length-min(off, s.length) {
			return
		}
		again.psn, again.addr, again.length, again.packets = h.PSN, h.VA, h.Length, packetsOf(h.Length, q.mtu)
	}
	again.sent, again.again = 0, true
	// The requester has gone back: it will ask again for what was still to be sent from there on.
	keep := 0
	for keep < len(r.jobs) && wire.PSNDiff(r.jobs[keep].psn, h.PSN) < 0 {
		keep++
	}
	if keep >= int(q.attr.MaxDestRDAtomic) {
		return // the requester is going forward, not back
	}
	r.jobs = append(r.jobs[:keep], again)
	q.vec.owe(q)
}

// respond sends what the responder owes: READ responses and atomics in order, then one acknowledgement for everything,
// or a NAK.
func (q *qp) respond() {
	r := &q.resp
	if q.state < verbs.QPSRTR || q.state == verbs.QPSErr || q.kind != verbs.QPTRC {
		return
	}
	for budget := turnPackets; len(r.jobs) > 0; budget-- {
		if budget == 0 {
			q.vec.schedule(q)
			return
		}
		q.answerJob(&r.jobs[0])
	}
	q.answer()
	if r.dying {
		q.vec.dev.count.qpErrors.Add(1)
		q.toErr()
	}
}

// answer sends the acknowledgement or NAK that is owed.
func (q *qp) answer() {
	r := &q.resp
	switch {
	case r.nak:
		q.acknowledge(r.psn, r.nakWith)
	case r.ack:
		q.acknowledge(r.ackAt, wire.ACK)
	case r.again:
		q.acknowledge(r.againAt, wire.ACK)
	}
	r.nak, r.ack, r.again = false, false, false
}

// lastWord sends the pending acknowledgement of a queue pair that will answer nothing more. What it has received is
// completed, so the peer must be told: otherwise it would repeat that until it gives up, which may be never. If READs
// are pending, nothing is sent.
func (q *qp) lastWord() {
	if q.kind == verbs.QPTRC && q.state >= verbs.QPSRTR && q.state != verbs.QPSErr && len(q.resp.jobs) == 0 {
		q.answer()
	}
}

// answerJob sends one packet of the oldest job.
func (q *qp) answerJob(j *job) {
	r := &q.resp
	h := q.header(wire.PSNAdd(j.psn, int(j.sent)))
	h.Syndrome, h.MSN = wire.ACK, q.sign(j.msn)
	if j.atomic {
		h.Opcode, h.Orig = wire.RCAtomicAcknowledge, j.orig
		q.vec.tx.add(q.path, &h, nil, 0)
	} else {
		off := j.sent * uint32(q.mtu)
		n := min(uint32(q.mtu), j.length-off)
		v := q.vec
		v.parts = v.parts[:0]
		if n > 0 {
			b := q.pd.remote(j.key, j.addr+uint64(off), uint64(n), verbs.AccessRemoteRead)
			if b == nil { // closed meanwhile
				r.jobs = r.jobs[:0]
				r.psn = h.PSN
				q.refuse(wire.NAKRemoteAccess)
				return
			}
			v.parts = append(v.parts, b)
		}
		first, last := j.sent == 0, j.sent == j.packets-1
		switch {
		case first && last:
			h.Opcode = wire.RCReadResponseOnly
		case first:
			h.Opcode = wire.RCReadResponseFirst
		case last:
			h.Opcode = wire.RCReadResponseLast
		default:
			h.Opcode = wire.RCReadResponseMiddle
		}
		v.tx.add(q.path, &h, v.parts, int(n))
	}
	if j.sent++; j.sent == j.packets {
		r.jobs = append(r.jobs[:0], r.jobs[1:]...)
	}
}

func (q *qp) header(psn uint32) wire.Header {
	return wire.Header{Migrated: true, PKey: q.guard.partition(), DestQP: q.attr.DestQPNum, PSN: psn}
}

func (q *qp) acknowledge(psn uint32, s wire.Syndrome) {
	h := q.header(psn)
	h.Opcode, h.Syndrome, h.MSN = wire.RCAcknowledge, s, q.sign(q.resp.msn)
	q.vec.tx.add(q.path, &h, nil, 0)
}

// congested tells the peer that its packets were marked, at most once per interval (IBTA vol. 1, annex A17.9.3).
func (q *qp) congested() {
	r, now := &q.resp, q.vec.now
	if q.datagrams() || q.path == nil || q.guard.on && q.guard.own == 0 || r.cnpAt != 0 && now-r.cnpAt < cnpInterval {
		return
	}
	r.cnpAt = now
	q.vec.dev.count.sentCNPs.Add(1)
	h := q.header(q.sign(0))
	h.Opcode, h.BECN = wire.CNP, true
	q.vec.tx.add(q.path, &h, nil, 0)
}

// cnpInterval is the usual minimum of adapters, in nanoseconds.
const cnpInterval = 50_000
