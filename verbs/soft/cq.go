package soft

import (
	"fmt"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
)

// cq is a completion queue. When it is full it overruns: the completion is
// lost, which Poll reports, and its queue pairs go to ERR. Only what is flushed
// after an error waits for room: many queue pairs that lose one peer together
// must not take down those of another one that share the CQ.
type cq struct {
	vec     *vector
	depth   uint64
	channel *verbs.CompChannel
	users   atomic.Int32
	closed  bool
	overrun bool

	ring  []cqe // grows up to depth; length a power of two
	head  uint64
	tail  uint64
	armed arming

	waiters []*qp // have more to flush
}

// cqe is a completion with what its polling frees in the queue pair.
type cqe struct {
	wc     verbs.WC
	qp     *qp
	retire uint64 // work requests of the queue up to here are done with
	recv   bool
}

type arming uint8

const (
	unarmed arming = iota
	armedSolicited
	armedAny
)

var _ verbs.CQ = (*cq)(nil)

// CreateCQ implements verbs.Device.
func (d *Device) CreateCQ(attr verbs.CQAttr) (verbs.CQ, error) {
	if attr.Vector < 0 || attr.Vector >= len(d.vectors) {
		return nil, fmt.Errorf("vector %d: %w", attr.Vector, verbs.ErrInvalid)
	}
	if attr.Depth < 1 || attr.Depth > maxCQE {
		return nil, fmt.Errorf("completion queue depth %d: %w", attr.Depth, verbs.ErrInvalid)
	}
	if d.isClosed() {
		return nil, verbs.ErrClosed
	}
	d.cqCount.Add(1)
	return &cq{vec: d.vectors[attr.Vector], depth: uint64(attr.Depth), channel: attr.Channel}, nil
}

// push adds a completion.
func (c *cq) push(wc *verbs.WC, q *qp, retire uint64, recv, solicited bool) {
	if c.tail-c.head >= c.depth {
		c.lose()
		return
	}
	if c.tail-c.head == uint64(len(c.ring)) {
		c.grow()
	}
	c.ring[c.tail&uint64(len(c.ring)-1)] = cqe{wc: *wc, qp: q, retire: retire, recv: recv}
	c.tail++
	if c.armed == armedAny || c.armed == armedSolicited && (solicited || wc.Status != verbs.WCSuccess) {
		c.armed = unarmed
		c.channel.Notify(c)
	}
}

// room tells whether a flushed work request can complete now; if not, q is run
// again when there is room.
func (c *cq) room(q *qp) bool {
	if c.overrun || c.tail-c.head < c.depth {
		return true
	}
	c.waiters = append(c.waiters, q)
	return false
}

// lose is an overrun (IBTA vol. 1, 11.6.3.1).
func (c *cq) lose() {
	if c.overrun {
		return
	}
	c.overrun = true
	c.vec.dev.async.Notify(verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: c})
	c.vec.overruns = append(c.vec.overruns, c)
}

func (c *cq) grow() {
	ring := make([]cqe, max(16, 2*len(c.ring)))
	for i := c.head; i != c.tail; i++ {
		ring[i&uint64(len(ring)-1)] = c.ring[i&uint64(len(c.ring)-1)]
	}
	c.ring = ring
}

// Poll implements verbs.CQ.
func (c *cq) Poll(wcs []verbs.WC) (int, error) {
	if c.closed {
		return 0, verbs.ErrClosed
	}
	n := 0
	for ; n < len(wcs) && c.head != c.tail; n++ {
		e := &c.ring[c.head&uint64(len(c.ring)-1)]
		wcs[n] = e.wc
		if e.recv {
			e.qp.rq.retired = max(e.qp.rq.retired, e.retire)
		} else {
			e.qp.sq.retired = max(e.qp.sq.retired, e.retire)
		}
		e.qp = nil
		c.head++
	}
	if n > 0 && len(c.waiters) > 0 {
		for _, q := range c.waiters {
			c.vec.schedule(q)
		}
		clear(c.waiters)
		c.waiters = c.waiters[:0]
	}
	if c.overrun && c.head == c.tail {
		return n, verbs.ErrCQOverrun
	}
	return n, nil
}

// ReqNotify implements verbs.CQ.
func (c *cq) ReqNotify(solicited bool) error {
	switch {
	case c.closed:
		return verbs.ErrClosed
	case c.channel == nil:
		return fmt.Errorf("completion queue without channel: %w", verbs.ErrInvalid)
	case !solicited:
		c.armed = armedAny
	case c.armed == unarmed:
		c.armed = armedSolicited
	}
	return nil
}

// Resize implements verbs.CQ.
func (c *cq) Resize(depth int) error {
	switch {
	case c.closed:
		return verbs.ErrClosed
	case depth < 1 || depth > maxCQE || uint64(depth) < c.tail-c.head:
		return fmt.Errorf("completion queue depth %d: %w", depth, verbs.ErrInvalid)
	}
	c.depth = uint64(depth)
	return nil
}

// Vector implements verbs.CQ.
func (c *cq) Vector() int { return c.vec.index }

// Close implements verbs.CQ.
func (c *cq) Close() error {
	if n := c.users.Load(); n > 0 {
		return fmt.Errorf("completion queue of %d queue pairs: %w", n, verbs.ErrBusy)
	}
	if !c.closed {
		c.vec.dev.cqCount.Add(-1)
	}
	c.closed = true
	c.ring, c.head, c.tail = nil, 0, 0
	return nil
}
