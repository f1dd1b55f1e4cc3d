package soft

import (
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// doubt is whether the timer may have expired spuriously.
//
//	sure ── timeout ──► probing ─┬─ answer to more than was sent since ──► sure
//	                             ├─ other answer ──► trying ── answer ───► sure
//	                             └─ nothing new to send ──► doubtful ────► sure
//
// A NAK makes it sure, and a timeout probing, from anywhere.
type doubt uint8

const (
	sure     doubt = iota
	probing        // only one packet is sent again until its answer
	trying         // that proved nothing: two new packets are sent until the next one
	doubtful       // that proved nothing: all is sent again
)

// snapshot is the state to restore if the timer expired spuriously.
type snapshot struct {
	cc       congestion
	recover  uint32
	next     uint32 // una if a READ or atomic was in flight
	timing   bool
	timedPSN uint32
	timedAt  int64
}

// goBack makes psn, which must not be before una, the next to be sent.
func (q *qp) goBack(psn uint32) {
	r := &q.req
	r.timing = false
	r.rtoAt = 0
	keep := 0
	for keep < len(r.reads) && wire.PSNDiff(r.reads[keep], psn) < 0 {
		keep++
	}
	r.reads = r.reads[:keep]
	r.idx, r.k = q.sq.Done, 0
	for ; r.idx != q.sq.Posted(); r.idx++ {
		w := q.sq.Slot(r.idx)
		if !w.begun {
			break
		}
		if d := wire.PSNDiff(psn, w.first); d >= 0 && uint32(d) < w.packets {
			r.k = uint32(d)
			break
		}
	}
	if psn != r.una {
		r.rtoAt = q.vec.now + r.rtt.timer(q.ackTimeout())
	}
	q.vec.schedule(q)
}

// setDeadline sets the deadline to the earliest of the timers.
func (q *qp) setDeadline() {
	r := &q.req
	q.deadline = 0
	if q.state == verbs.QPSErr {
		return
	}
	for _, at := range [...]int64{r.rtoAt, r.rnrAt, r.paceAt, q.resp.gapAt} {
		if at != 0 && (q.deadline == 0 || at < q.deadline) {
			q.deadline = at
		}
	}
	q.vec.timers.set(q)
}

// expired is called when the deadline has come.
func (q *qp) expired() {
	r, now := &q.req, q.vec.now
	if r.rnrAt != 0 && now >= r.rnrAt {
		r.rnrAt = 0
		q.vec.schedule(q)
	}
	if r.paceAt != 0 && now >= r.paceAt {
		r.paceAt = 0
		q.vec.schedule(q)
	}
	if r.rtoAt != 0 && now >= r.rtoAt {
		r.rtoAt = 0
		q.timeout()
	}
	if at := q.resp.gapAt; at != 0 && now >= at {
		q.askAgain()
	}
	q.setDeadline()
}

// timeout goes back to the oldest packet, or gives up if the peer has been silent for too long, see impatient. The
// timer itself follows the round trip, so there are more retransmissions than retries in that time.
func (q *qp) timeout() {
	r, v := &q.req, q.vec
	v.dev.count.timeouts.Add(1)
	if q.givesUp() {
		return
	}
	r.timeouts++
	r.tries++
	r.rtt.backoff = min(r.rtt.backoff+1, maxBackoff)
	if r.doubt != probing {
		r.doubt = probing
		r.before, r.sent = q.snapshot(), r.una
	}
	// The loss of a single packet says nothing about the network.
	if wire.PSNDiff(r.high, r.una) > 1 || r.timeouts > 1 {
		r.cc.timeout(r.timeouts)
	}
	r.recover = r.high
	q.goBack(r.una)
}

// snapshot returns the state to restore. A READ or atomic that was begun and not answered is in flight, even if it is
// to be sent again and so is not in reads.
func (q *qp) snapshot() snapshot {
	r := &q.req
	s := snapshot{r.cc, r.recover, q.next(), r.timing, r.timedPSN, r.timedAt}
	for i := q.sq.Done; i != q.sq.Posted(); i++ {
		w := q.sq.Slot(i)
		if !w.begun {
			break
		}
		if w.answered() {
			s.next = r.una
		}
	}
	return s
}

// judge decides, after the timer expired and only the oldest packet was sent again, whether the timeout was spurious.
// una is what the peer has acknowledged. If una is beyond all that was sent since, the peer has received what was sent
// before: nothing was lost, the peer was only slow, as any process of a busy machine is at times, or the path is longer
// than the timer. So the state of before is restored (as in F-RTO, RFC 5682, and Eifel, RFC 4015), which may be that of
// sending again what an earlier timeout or a NAK found to be lost. An answer to what was sent since proves nothing. As
// in F-RTO two new packets follow it, not those that may be lost: either the peer acknowledges more of those, or it
// answers the new packets by a NAK, one round trip later. It returns what to send next, next if there is no proof. How
// long the peer was away is not used as a round trip sample, by which sending is paced, but the timer waits as long
// until there is one.
func (q *qp) judge(una, next uint32) uint32 {
	r := &q.req
	switch {
	case r.doubt == trying:
		r.before.next = next
	case wire.PSNDiff(una, r.sent) > 0:
	case wire.PSNDiff(una, r.recover) >= 0:
		r.doubt = sure
		return next
	case r.doubt == probing && r.recover == r.high && r.before.next == r.high && q.hasNew():
		r.doubt = trying
		return r.high
	default:
		r.doubt = doubtful
		return next
	}
	r.doubt = sure
	r.cc, r.recover = r.before.cc, r.before.recover
	if r.before.timing && wire.PSNDiff(una, r.before.timedPSN) > 0 {
		r.rtt.late = q.vec.now - r.before.timedAt
	}
	return r.before.next
}

// newPackets is how many packets follow an answer that may or may not be that to the packet sent again (RFC 5682).
const newPackets = 2

// hasNew reports whether packets that were never sent can be sent now.
func (q *qp) hasNew() bool {
	for i := q.sq.Done; i != q.sq.Posted(); i++ {
		w := q.sq.Slot(i)
		if !w.begun || wire.PSNDiff(wire.PSNAdd(w.first, int(w.packets)), q.req.high) > 0 {
			return q.state == verbs.QPSRTS
		}
	}
	return false
}

// ackTimeout returns the local ACK timeout in nanoseconds, which is the initial timer.
func (q *qp) ackTimeout() int64 {
	if q.attr.Timeout == 0 {
		return maxRTO
	}
	return 4096 << q.attr.Timeout
}

// impatient reports that the peer has made no progress for too long; with timeout 0 it never does. IBTA vol. 1,
// 9.7.6.1.3 lets a timer run up to four times its value; twice is used here. The peer was asked at least RetryCnt
// times.
func (q *qp) impatient() bool {
	r := &q.req
	limit := 2 * q.ackTimeout() * (int64(q.attr.RetryCnt) + 1)
	return q.attr.Timeout != 0 && q.vec.now-r.progressAt >= limit && r.tries >= int(q.attr.RetryCnt)
}

// givesUp ends a requester that has waited too long, or sends almost everything twice.
func (q *qp) givesUp() bool {
	if !q.impatient() && !q.futile() {
		return false
	}
	q.failOldest(verbs.WCRetryExcErr)
	return true
}

// tally is how much a requester had sent at a time, and whether the period before it was futile.
type tally struct {
	at     int64
	high   uint32
	again  uint64
	futile bool
}

// A period is futile if futilePackets or more packets were sent again in it, more than three for four new ones: that is
// a loss of about one in five, at which go-back-N hardly moves.
const (
	futilePeriod  = 1000 * millisecond
	futilePackets = 32
)

// futile reports whether a protected queue pair should rather give up: after two futile periods, since one may be what
// follows an outage. Its users have TCP, which is far faster if the path loses only UDP, and no slower otherwise. It is
// called for each loss, and judges once in a period.
func (q *qp) futile() bool {
	r, was := &q.req, q.req.judged
	now := tally{at: q.vec.now, high: r.high, again: r.again}
	if !q.guard.on || was.at != 0 && now.at-was.at < futilePeriod {
		return false
	}
	fresh, again := uint64(wire.PSNDiff(now.high, was.high)), now.again-was.again
	now.futile = was.at != 0 && again >= futilePackets && 4*again > 3*fresh
	r.judged = now
	return now.futile && was.futile
}
