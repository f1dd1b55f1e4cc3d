package cm

import (
	"net/netip"
	"time"
)

// query is one of our SIDR_REQs.
type query struct {
	core    *core
	route   route
	tid     uint64
	req     *SIDRREQ
	rep     *SIDRREP // the answer; nil without one
	err     error    // why there is no answer
	tries   int
	timer   timer
	changed chan struct{}
}

// resolve asks for the queue pair of a service.
func (c *core) resolve(now time.Time, to route, req *SIDRREQ) (*query, error) {
	if c.full() {
		return nil, ErrNoResources
	}
	q := &query{core: c, route: to, req: req, tries: c.Retries, changed: make(chan struct{}, 1)}
	q.timer.fire = q.expire
	req.RequestID = c.freshID()
	q.tid = uint64(c.newID())<<32 | uint64(req.RequestID)
	c.queries[req.RequestID] = q
	c.send(to, q.tid, req)
	c.timers.set(&q.timer, now.Add(c.patience(c.ResponseTimeout)))
	return q, nil
}

func (q *query) expire(now time.Time) {
	if q.tries == 0 {
		q.core.stats.Timeouts++
		q.finish(ErrTimeout)
		return
	}
	q.tries--
	q.core.stats.Repeated++
	q.core.send(q.route, q.tid, q.req)
	q.core.timers.set(&q.timer, now.Add(q.core.patience(q.core.ResponseTimeout)))
}

func (q *query) finish(why error) {
	q.err = why
	q.core.timers.stop(&q.timer)
	delete(q.core.queries, q.req.RequestID)
	signal(q.changed)
}

func (c *core) receiveSIDRREP(from route, m *SIDRREP) {
	q := c.queries[m.RequestID]
	if q == nil || q.route.remote != from.remote {
		c.stats.Unknown++
		return
	}
	if m.Status != SIDRSuccess {
		q.finish(&SIDRError{Status: m.Status, Info: m.Info, PrivateData: m.PrivateData})
		return
	}
	q.rep = m
	q.finish(nil)
}

// questionID identifies a SIDR_REQ of a peer.
type questionID struct {
	addr netip.Addr
	id   uint32
	tid  uint64
}

// question is a SIDR_REQ of a peer, and later our answer to it, kept for repetitions.
type question struct {
	core     *core
	route    route
	tid      uint64
	req      *SIDRREQ
	addr     AddrHeader
	listener *listener
	queued   bool
	rep      *SIDRREP // nil: not answered yet
	timer    timer
}

func (c *core) receiveSIDRREQ(now time.Time, from route, tid uint64, m *SIDRREQ) {
	key := questionID{from.remote, m.RequestID, tid}
	if q := c.questions[key]; q != nil {
		if q.rep != nil {
			c.send(from, tid, q.rep)
		}
		return
	}
	refuse := func(status SIDRStatus) {
		c.stats.Refused++
		c.send(from, tid, &SIDRREP{RequestID: m.RequestID, Status: status, Service: m.Service})
	}
	q := &question{core: c, route: from, tid: tid, req: m}
	private, err := q.addr.Parse(m.PrivateData)
	addrs := c.addrs()
	if err != nil || from.local >= len(addrs) || q.addr.Destination != addrs[from.local] || q.addr.Source.Addr() != from.remote {
		refuse(SIDRRejected)
		return
	}
	l := c.listenerOf(m.Service, q.addr.Destination, true)
	if l == nil {
		refuse(SIDRUnsupported)
		return
	}
	if len(l.queue) >= l.backlog || c.full() || len(c.questions) >= c.mostQuestions() {
		refuse(SIDRNoQP)
		return
	}
	m.PrivateData = private
	q.listener, q.queued = l, true
	q.timer.fire = q.expire
	c.questions[key] = q
	c.timers.set(&q.timer, now.Add(codeTime(c.ServiceTimeout)))
	l.add(q)
}

// expire forgets the question; the peer may ask again.
func (q *question) expire(time.Time) {
	q.core.timers.stop(&q.timer)
	delete(q.core.questions, questionID{q.route.remote, q.req.RequestID, q.tid})
	if q.queued {
		q.listener.remove(q)
	}
	if q.rep == nil {
		q.rep = &SIDRREP{} // too late for an answer
	}
}

// answer answers the question, and fills in its ids. The answer is kept until two repetitions of the question would
// have come.
func (q *question) answer(now time.Time, rep *SIDRREP) error {
	if q.rep != nil {
		return ErrAnswered
	}
	rep.RequestID, rep.Service = q.req.RequestID, q.req.Service
	q.rep = rep
	if q.queued {
		q.listener.remove(q)
		q.queued = false
	}
	q.core.send(q.route, q.tid, rep)
	q.core.timers.set(&q.timer, now.Add(2*q.core.patience(q.core.ResponseTimeout)))
	return nil
}
