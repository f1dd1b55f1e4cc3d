package soft

import (
	"github.com/smcgw/smcgw/verbs"
)

// burst sends packets in the middle of a message, as many as budget and room allow, in one pass. It returns 0 if there
// are none, or if they are not in one piece of memory, or must be copied. A paced sender sends packets one by one.
func (q *qp) burst(w *sendWQE, psn uint32, budget, room int) int {
	r := &q.req
	n := min(int(w.packets)-1-int(r.k), budget, room)
	if n < 2 || r.k == 0 || w.apart || q.mtu >= copyBelow && r.wasSent(psn) || w.answered() || len(w.sges) != 1 || r.rtt.srtt >= paceFromRTT {
		return 0
	}
	b := q.pd.local(&w.sges[0], r.k*uint32(q.mtu), uint32(n*q.mtu), 0)
	if b == nil {
		return 0
	}
	h := q.header(psn)
	q.message(w, &h)
	q.vec.tx.addRun(q.path, &h, b, q.mtu, r.ackEvery(), n == room)
	return n
}

// more reports whether the work requests posted after the one at idx are sent right after it, so that their packets ask
// for the acknowledgement of both. A sender that has reason to expect congestion asks after every message: its window
// grows with the acknowledgements.
func (q *qp) more() bool {
	r := &q.req
	if r.idx+1 == q.sq.Posted() || r.cc.window < maxWindow || r.rtt.srtt >= paceFromRTT || q.state != verbs.QPSRTS {
		return false
	}
	w := q.sq.Slot(r.idx + 1)
	return w.status == verbs.WCSuccess && !w.answered() && w.op != verbs.WRLocalInv && w.flags&verbs.SendFence == 0
}
