package shm

import (
	"fmt"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
)

// cq is a completion queue. It never overruns: who finds it full waits until
// Poll makes room, which holds back the queue pair and with it the peer.
type cq struct {
	vec     *vector
	depth   uint64
	channel *verbs.CompChannel
	users   atomic.Int32
	closed  bool

	ring    []cqe // grows up to depth; length a power of two
	head    uint64
	tail    uint64
	armed   arming
	waiters []waiter
}

// cqe is a completion with what its polling frees in the queue pair.
type cqe struct {
	wc     verbs.WC
	qp     *qp
	retire uint64 // work requests of the queue up to here are done with
	recv   bool
}

// waiter is a queue pair that found the CQ full; the flag says so in the queue pair.
type waiter struct {
	qp   *qp
	flag *bool
}

type arming uint8

const (
	unarmed arming = iota
	armedSolicited
	armedAny
)

var _ verbs.CQ = (*cq)(nil)

func (c *cq) room() bool { return c.tail-c.head < c.depth }

// wait runs q again when there is room. flag is q's, one per queue.
func (c *cq) wait(q *qp, flag *bool) {
	if !*flag {
		*flag = true
		c.waiters = append(c.waiters, waiter{q, flag})
	}
}

// push adds a completion; the caller has checked room.
func (c *cq) push(e cqe, solicited bool) {
	if c.tail-c.head == uint64(len(c.ring)) {
		c.grow()
	}
	c.ring[c.tail&uint64(len(c.ring)-1)] = e
	c.tail++
	if c.armed == unarmed {
		return
	}
	if c.armed == armedAny || solicited || e.wc.Status != verbs.WCSuccess {
		c.armed = unarmed
		c.channel.Notify(c)
	}
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
		e.qp.retired(e)
		e.qp = nil
		c.head++
	}
	if n > 0 && len(c.waiters) > 0 {
		c.wakeWaiters()
	}
	return n, nil
}

func (c *cq) wakeWaiters() {
	for _, w := range c.waiters {
		*w.flag = false
		c.vec.schedule(w.qp)
	}
	clear(c.waiters)
	c.waiters = c.waiters[:0]
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
	c.wakeWaiters()
	return nil
}

// Vector implements verbs.CQ.
func (c *cq) Vector() int { return c.vec.index }

// Close implements verbs.CQ.
func (c *cq) Close() error {
	if n := c.users.Load(); n > 0 {
		return fmt.Errorf("completion queue of %d queue pairs: %w", n, verbs.ErrBusy)
	}
	c.closed = true
	c.ring, c.head, c.tail = nil, 0, 0
	return nil
}
