package cm

import (
	"time"

	"github.com/smcgw/smcgw/internal/due"
)

// conn is a connection or an attempt at one. The fields up to listener are set when it is made.
type conn struct {
	core     *core
	id       uint32 // ours
	tid      uint64 // transaction id of REQ, REP, RTU, MRA and REJ
	route    route
	active   bool
	req      *REQ       // ours or the peer's
	addr     AddrHeader // of the REQ
	listener *listener  // passive: the listener of the request

	state    state
	remoteID uint32 // 0: not known yet
	guid     uint64 // of the peer
	rep      *REP   // ours or the peer's
	queued   bool   // whether it is in the listener's queue
	err      error  // why it is over; nil: it is not

	// The message that is repeated until it is answered.
	timer    due.Timer[*conn]
	last     Message
	lastTID  uint64
	wait     time.Duration
	tries    int
	limit    time.Time // MRAs cannot extend the wait beyond it
	rtu      *RTU      // to answer a repeated REP
	timedOut bool      // the DREQ was not answered
	complete bool      // it was established

	changed chan struct{} // holds a token after every change of state
	done    chan struct{} // closed when err is set
	after   []func()      // called when done is closed
}

func (c *core) newConn(to route, tid uint64, req *REQ) *conn {
	x := &conn{
		core: c, id: c.freshID(), tid: tid, route: to, req: req,
		changed: make(chan struct{}, 1), done: make(chan struct{}),
	}
	x.timer.What = x
	c.conns[x.id] = x
	return x
}

func (x *conn) to(s state) {
	x.state = s
	if s == stateEstablished {
		x.complete = true
		x.core.stats.EstablishedEver++
	}
	signal(x.changed)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// maxGrant is how long the peer's MRAs can postpone the next repetition: those of the kernel ask for 69 s.
const maxGrant = 2 * time.Minute

// ask sends m and repeats it until the state changes.
func (x *conn) ask(now time.Time, tid uint64, m Message, wait time.Duration, retries int) {
	x.last, x.lastTID, x.wait, x.tries, x.limit = m, tid, wait, retries, now.Add(maxGrant)
	x.core.send(x.route, tid, m)
	x.core.timers.Set(&x.timer, now.Add(wait))
}

// answered stops the repetition.
func (x *conn) answered() {
	x.last = nil
	x.core.timers.Set(&x.timer, time.Time{})
}

// expire runs the timers that are due.
func (c *core) expire(now time.Time) {
	for t := c.timers.Take(now); t != nil; t = c.timers.Take(now) {
		t.What.expire(now)
	}
}

// expire is called when the timer fires.
func (x *conn) expire(now time.Time) {
	switch x.state {
	case stateReqSent, stateRepSent, stateDreqSent:
		if x.tries > 0 {
			x.tries--
			x.core.stats.Repeated++
			x.core.send(x.route, x.lastTID, x.last)
			x.core.timers.Set(&x.timer, now.Add(x.wait))
			return
		}
		x.core.stats.Timeouts++
		if x.state == stateDreqSent {
			x.timedOut = true
			x.enterTimeWait(now, x.core.TimeWait)
			return
		}
		x.reject(RejectTimeout, nil, nil)
		x.finish(now, ErrTimeout)
	case stateReqRcvd:
		x.core.stats.Timeouts++
		x.turnAway(RejectTimeout, nil, nil, ErrTimeout)
	case stateTimeWait:
		x.forget()
	case stateRepRcvd, stateEstablished, stateClosed:
		// These states have no timer.
	}
}

// reject sends the REJ that fits the state.
func (x *conn) reject(reason RejectReason, ari, private []byte) {
	m := &REJ{LocalID: x.id, RemoteID: x.remoteID, Message: KindOther, Reason: reason, ARI: ari, PrivateData: private}
	switch x.state {
	case stateReqRcvd:
		m.LocalID, m.Message = 0, KindREQ
	case stateRepRcvd:
		m.Message = KindREP
	default:
	}
	if reason == RejectTimeout && ari == nil {
		m.ARI = make([]byte, 8)
		put64(m.ARI, x.core.CAGUID)
	}
	x.core.send(x.route, x.tid, m)
}

// over ends the use of the connection for a reason; the first reason is kept.
func (x *conn) over(why error) {
	if x.err == nil {
		x.err = why
		close(x.done)
		for _, f := range x.after {
			go f()
		}
		x.after = nil
	}
}

// finish ends an attempt. A passive attempt that the peer ended is remembered for a while: its REQ may still be in the
// network.
func (x *conn) finish(now time.Time, why error) {
	x.over(why)
	if x.active {
		x.forget()
	} else {
		x.enterTimeWait(now, x.core.TimeWait)
	}
}

// turnAway refuses a request and forgets it, as the kernel does, so that a flood of refused requests takes no room from
// others. A repetition of the REQ, if the REJ was lost, is a new request.
func (x *conn) turnAway(reason RejectReason, ari, private []byte, why error) {
	x.reject(reason, ari, private)
	x.over(why)
	x.forget()
}

// forget removes the connection from all tables.
func (x *conn) forget() {
	x.answered()
	x.leaveQP()
	x.leaveQueue()
	delete(x.core.conns, x.id)
	if k := x.peer(); x.core.peers[k] == x {
		delete(x.core.peers, k)
	}
	x.to(stateClosed)
}

// enterTimeWait keeps the connection for a while, to answer repetitions by the peer and late packets of the network.
func (x *conn) enterTimeWait(now time.Time, wait time.Duration) {
	x.answered()
	x.leaveQP()
	x.leaveQueue()
	x.to(stateTimeWait)
	x.core.timers.Set(&x.timer, now.Add(wait))
}

func (x *conn) peer() peerID { return peerID{x.route.remote, x.guid, x.remoteID} }

// remoteQP returns the key of the peer's queue pair.
func (x *conn) remoteQP() peerQP {
	k := peerQP{addr: x.route.remote, guid: x.guid}
	if !x.active {
		k.qpn = x.req.QPN
	} else if x.rep != nil {
		k.qpn = x.rep.QPN
	}
	return k
}

func (x *conn) leaveQP() {
	if k := x.remoteQP(); x.core.qps[k] == x {
		delete(x.core.qps, k)
	}
}

// leaveQueue removes a request that the application has not taken from the listener's queue.
func (x *conn) leaveQueue() {
	if x.queued {
		x.listener.remove(x)
		x.queued = false
	}
}

// localQPN returns the number of our queue pair, or false before it is known.
func (x *conn) localQPN() (uint32, bool) {
	if x.active {
		return x.req.QPN, true
	}
	if x.rep == nil {
		return 0, false
	}
	return x.rep.QPN, true
}

// abort ends the connection in any state, with the message to the peer that fits the state.
func (x *conn) abort(now time.Time, why error) {
	switch x.state {
	case stateReqSent:
		x.reject(RejectTimeout, nil, nil)
		x.finish(now, why)
	case stateReqRcvd:
		x.turnAway(RejectConsumerDefined, nil, nil, why)
	case stateRepRcvd, stateRepSent:
		x.reject(RejectConsumerDefined, nil, nil)
		x.finish(now, why)
	case stateEstablished:
		x.disconnect(now, why)
	case stateDreqSent, stateTimeWait, stateClosed:
		x.over(why)
	}
}
