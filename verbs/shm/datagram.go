package shm

import (
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
)

// Datagrams have no connection and so cannot use the ring of a queue pair: every vector of one side has a ring to every
// vector of the other. The sender looks up the destination's vector in the peer's table. A datagram is dropped and
// counted if it meets a full ring, an unknown destination, a wrong key or no receive; its sender never waits.

// grhSize is the room for the GRH that UD leaves at the beginning of a receive (IBTA vol. 1, 11.4.1.2).
const grhSize = 40

// datagramOut is the ring from this vector to one of the peer.
type datagramOut struct {
	prod      *atomic.Uint64
	cons      *atomic.Uint64
	ring      uint64 // offset into the peer's memory
	published uint64
	consSeen  uint64
}

// datagramIn is the ring from a vector of the peer to this one.
type datagramIn struct {
	prod     *atomic.Uint64
	cons     *atomic.Uint64
	ring     uint64
	consumed uint64
}

// bindDatagrams finds the rings of the vector.
func (pt *port) bindDatagrams() {
	p, v := pt.peer, pt.vec.index
	pt.out, pt.in = make([]datagramOut, len(p.targets)), make([]datagramIn, len(p.targets))
	for i := range p.targets {
		to, from := p.remLayout.datagrams(i, v), p.ownLayout.datagrams(v, i)
		pt.out[i] = datagramOut{prod: p.rem.word(to + dgProd), cons: p.rem.word(to + dgCons), ring: to + dgRing}
		pt.in[i] = datagramIn{prod: p.own.word(from + dgProd), cons: p.own.word(from + dgCons), ring: from + dgRing}
	}
}

// datagramVector returns the vector of a UD queue pair of the peer.
func (p *Peer) datagramVector(qpn uint32) (int, bool) {
	if qpn > 0xffffff {
		return 0, false
	}
	word := p.rem.word(p.remLayout.qpEntry(slotOf(qpn))).Load()
	vector := int(word >> 16 & 0xffff)
	ok := word&0xff == kindDatagram && qpnOf(slotOf(qpn), uint32(word>>32)) == qpn && vector < len(p.targets)
	return vector, ok
}

// sendDatagram publishes or drops a datagram; either way it is finished.
func (q *qp) sendDatagram(s *sendSlot) {
	if s.length > maxDatagram {
		q.failed(s, verbs.WCLocLenErr)
		return
	}
	p, pt := q.peer, q.port
	vector, ok := p.datagramVector(s.dest)
	if !ok || !pt.out[vector].room(p) {
		p.dev.counters.dropped.Add(1)
		return
	}
	o := &pt.out[vector]
	off := o.ring + o.published%dgSlots*dgSlotSize
	if !q.gather(s, p.rem.span(off+dgHeader, uint64(s.length))) {
		return
	}
	flags := uint64(0)
	if s.op == verbs.WRSendWithImm {
		flags |= entryImm
	}
	qkey := s.qkey
	if qkey>>31 != 0 { // controlled Q_Keys cannot be chosen freely (IBTA vol. 1, 10.2.5)
		qkey = q.attr.QKey
	}
	w := p.rem.plainWords(off, 3)
	w[0] = uint64(q.num)<<32 | uint64(s.dest)
	w[1] = uint64(qkey)<<32 | uint64(s.imm)
	w[2] = uint64(s.length)<<32 | flags
	o.published++
	o.prod.Store(o.published)
	pt.notify(vector, uint32(q.vec.index))
	pt.push(s)
}

// room reports whether the ring can take one more datagram.
func (o *datagramOut) room(p *Peer) bool {
	if o.published-o.consSeen < dgSlots {
		return true
	}
	c := o.cons.Load()
	if c-o.consSeen > o.published-o.consSeen {
		p.violation("datagrams consumed that were not published")
		return false
	}
	o.consSeen = c
	return o.published-c < dgSlots
}

// DatagramRoom implements verbs.DatagramRoomer. A datagram without a destination is dropped anyway, so it reports full
// room.
func (q *qp) DatagramRoom(remoteQPN uint32) int {
	if q.port == nil || q.peer.down.Load() {
		return dgSlots
	}
	vector, ok := q.peer.datagramVector(remoteQPN)
	if !ok {
		return dgSlots
	}
	o := &q.port.out[vector]
	o.consSeen = min(o.published, max(o.consSeen, o.cons.Load())) // impossible values are detected by room
	return dgSlots - int(o.published-o.consSeen)
}

// datagrams receives what a vector of the peer has published. The mark is only a hint: an index beyond the peer's
// vectors is ignored.
func (pt *port) datagrams(from int) {
	if from >= len(pt.in) {
		return
	}
	in := &pt.in[from]
	n := in.prod.Load() - in.consumed
	if n > dgSlots {
		pt.peer.violation("more datagrams published than the ring holds")
		return
	}
	if n == 0 {
		return
	}
	for ; n > 0; n-- {
		if !pt.datagram(in.ring + in.consumed%dgSlots*dgSlotSize) {
			return
		}
		in.consumed++
	}
	in.cons.Store(in.consumed)
}

// lastDatagrams receives what a peer had published before it hung up.
func (pt *port) lastDatagrams() {
	for from := range pt.in {
		pt.datagrams(from)
	}
}

// datagram delivers or drops a datagram. False means that no honest peer wrote it.
func (pt *port) datagram(off uint64) bool {
	p := pt.peer
	w := p.own.words(off, 3)
	qpns, keys, size := w[0].Load(), w[1].Load(), w[2].Load()
	n, flags, src, dest := size>>32, size&0xffffffff, uint32(qpns>>32), uint32(qpns)
	if n > maxDatagram || flags&^entryImm != 0 || src > 0xffffff || dest > 0xffffff {
		p.violation("malformed datagram")
		return false
	}
	q := p.dev.qps[slotOf(dest)].Load()
	if q == nil || q.num != dest || q.port != pt || !q.acceptsDatagram(uint32(keys>>32)) {
		p.dev.counters.dropped.Add(1)
		return true
	}
	wc := verbs.WC{Opcode: verbs.WCRecv, ByteLen: grhSize + uint32(n), SrcQP: src, Flags: verbs.WCGRH}
	if flags&entryImm != 0 {
		wc.Flags |= verbs.WCWithImm
		wc.ImmData = uint32(keys)
	}
	q.receiveDatagram(wc, p.own.span(off+dgHeader, n))
	return true
}

// acceptsDatagram reports whether the queue pair accepts a datagram with that key now. If so, a receive is available.
func (q *qp) acceptsDatagram(qkey uint32) bool {
	return q.typ == verbs.QPTUD && q.receiving() && q.attr.QKey == qkey && q.rcq.room() && !q.rq.Empty()
}

// receiveDatagram fills the oldest receive after the room for the GRH, whose bytes are not touched.
func (q *qp) receiveDatagram(wc verbs.WC, data []byte) {
	room := uint64(0)
	for _, s := range q.rq.List() {
		room += uint64(s.Length)
	}
	if room < grhSize+uint64(len(data)) {
		q.peer.dev.counters.dropped.Add(1) // the receive serves the next one: no sender may stop the queue pair
		return
	}
	wc.Status = q.scatter(data)
	q.received(wc)
	if wc.Status != verbs.WCSuccess {
		q.fail()
	}
}

// scatter copies data after the room for the GRH; the caller has checked that it fits.
func (q *qp) scatter(data []byte) verbs.WCStatus {
	skip := uint64(grhSize)
	for _, s := range q.rq.List() {
		if len(data) == 0 {
			break
		}
		if skip >= uint64(s.Length) {
			skip -= uint64(s.Length)
			continue
		}
		dst := q.peer.local(s, verbs.AccessLocalWrite)
		if dst == nil {
			return verbs.WCLocProtErr
		}
		data = data[copy(dst[skip:], data):]
		skip = 0
	}
	return verbs.WCSuccess
}
