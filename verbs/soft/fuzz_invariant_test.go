package soft

import (
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// checkInvariants looks inside a queue pair for what must hold between turns
// whatever the peer sends: the counters in their order, everything bounded. It
// is called in every turn, so it does without require.
func checkInvariants(t simTB, vq verbs.QP) {
	q := vq.(*qp)
	s, r, p := &q.sq, &q.req, &q.resp
	hold := func(ok bool, what string) {
		if !ok {
			t.Fatalf("%v queue pair %#x in %v: %s", q.kind, q.num, q.state, what)
		}
	}
	hold(s.Retired <= s.Done && s.Done <= s.Posted(), "counters of the send queue")
	hold(s.Held() <= uint64(q.cap.MaxSendWR), "send queue overfull")
	hold(uint64(q.rq.Posted()) <= q.rq.Held() && q.rq.Held() <= uint64(q.cap.MaxRecvWR), "counters of the receive queue")
	if q.state >= verbs.QPSRTR && q.state != verbs.QPSErr {
		hold(len(p.stored) <= int(q.attr.MaxDestRDAtomic), "stored READs and atomics")
		hold(len(p.jobs) <= int(q.attr.MaxDestRDAtomic), "READs and atomics to be answered")
	}
	hold((p.early.ring == nil) == (p.early.kept == 0) && p.early.kept < earlyPackets, "packets that came early")
	hold(p.early.kept == 0 || p.gapAt != 0 && !p.nakked, "packets kept that are not waited for")
	if q.kind != verbs.QPTRC || q.state < verbs.QPSRTS || q.state == verbs.QPSErr {
		return
	}
	hold(s.Done <= r.idx && r.idx <= s.Posted(), "place in the send queue")
	hold(wire.PSNDiff(q.next(), r.una) >= 0, "next before una")
	hold(wire.PSNDiff(r.high, q.next()) >= 0, "next beyond high")
	hold(len(r.reads) <= max(1, int(q.attr.MaxRDAtomic)), "READs and atomics under way")
	hold(len(r.cuts) <= int(wire.PSNDiff(r.high, r.una)), "READ requests remembered")
	hold(q.next() == r.una || r.rtoAt != 0 || r.rnrAt != 0, "packets in flight without a timer")
	if s.Done == s.Posted() {
		hold(r.high == r.una, "packets in flight without work")
	} else if w := s.Slot(s.Done); w.begun {
		hold(wire.PSNDiff(w.first, r.una) <= 0, "una before the oldest work request")
	}
}
