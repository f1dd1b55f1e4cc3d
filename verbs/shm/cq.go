package shm

import (
	"fmt"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/internal/queues"
)

// cq is a completion queue. It never overruns: a queue pair that finds it full waits until Poll makes room, which also
// holds back the peer.
type cq struct {
	vec     *vector
	users   atomic.Int32
	queue   queues.Completions
	waiters []waiter
}

type cqe = queues.Completion

// waiter is a queue pair that found the CQ full; flag is the queue pair's mark of that.
type waiter struct {
	qp   *qp
	flag *bool
}

var _ verbs.CQ = (*cq)(nil)

func (c *cq) room() bool { return !c.queue.Full() }

// wait makes q run again when there is room. flag is q's, one per queue.
func (c *cq) wait(q *qp, flag *bool) {
	if !*flag {
		*flag = true
		c.waiters = append(c.waiters, waiter{q, flag})
	}
}

// push adds a completion; the caller must have checked for room.
func (c *cq) push(e *cqe) { c.queue.Push(e) }

func (c *cq) Poll(wcs []verbs.WC) (int, error) {
	if c.queue.Closed() {
		return 0, verbs.ErrClosed
	}
	n := c.queue.Poll(wcs)
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

func (c *cq) Vector() int { return c.vec.index }

func (c *cq) Close() error {
	if n := c.users.Load(); n > 0 {
		return fmt.Errorf("completion queue of %d queue pairs: %w", n, verbs.ErrBusy)
	}
	c.queue.Close()
	return nil
}
