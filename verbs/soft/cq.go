package soft

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/internal/queues"
)

// cq is a completion queue. If it is full, it overruns: the completion is lost, which Poll reports, and its queue pairs
// go to ERR. Only flushed completions wait instead, and use at most half of the queue: many queue pairs that lose one
// peer together must not take down those of another peer that share the CQ.
type cq struct {
	vec     *vector
	users   atomic.Int32
	queue   queues.Completions
	arrived chan<- struct{}
	overrun bool
	waiters []*qp // queue pairs that have more to flush
}

type cqe = queues.Completion

var _ verbs.CQ = (*cq)(nil)

// CreateCQ implements verbs.Device.
func (d *Device) CreateCQ(attr verbs.CQAttr) (verbs.CQ, error) {
	if attr.Vector < 0 || attr.Vector >= len(d.vectors) {
		return nil, fmt.Errorf("vector %d: %w", attr.Vector, verbs.ErrInvalid)
	}
	queue, err := queues.NewCompletions(attr.Depth, maxCQE)
	if err != nil {
		return nil, err
	}
	if d.isClosed() {
		return nil, verbs.ErrClosed
	}
	d.cqCount.Add(1)
	return &cq{vec: d.vectors[attr.Vector], queue: queue, arrived: attr.Arrived}, nil
}

// push adds a completion.
func (c *cq) push(e *cqe) {
	if c.queue.Full() {
		c.lose()
		return
	}
	c.queue.Push(e)
	select {
	case c.arrived <- struct{}{}:
	default:
	}
}

// room reports whether a work request of a failed queue pair can complete now; if not, q is scheduled when there is
// room. Half of the queue is reserved for queue pairs that have not failed.
func (c *cq) room(q *qp) bool {
	if c.queue.Free() > c.queue.Depth()/2 {
		return true
	}
	c.waiters = append(c.waiters, q)
	return false
}

// lose handles an overrun (IBTA vol. 1, 11.6.3.1), which takes down the current queue pairs of the CQ.
func (c *cq) lose() {
	if !c.overrun {
		c.overrun = true
		c.vec.dev.async.Notify(verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: c})
	}
	if !slices.Contains(c.vec.overruns, c) {
		c.vec.overruns = append(c.vec.overruns, c)
	}
}

func (c *cq) Poll(wcs []verbs.WC) (int, error) {
	if c.queue.Closed() {
		return 0, verbs.ErrClosed
	}
	n := c.queue.Poll(wcs)
	if n > 0 && len(c.waiters) > 0 {
		for _, q := range c.waiters {
			c.vec.schedule(q)
		}
		clear(c.waiters)
		c.waiters = c.waiters[:0]
	}
	if c.overrun && c.queue.Empty() {
		return n, verbs.ErrCQOverrun
	}
	return n, nil
}

func (c *cq) Vector() int { return c.vec.index }

func (c *cq) Close() error {
	if n := c.users.Load(); n > 0 {
		return fmt.Errorf("completion queue of %d queue pairs: %w", n, verbs.ErrBusy)
	}
	if !c.queue.Closed() {
		c.vec.dev.cqCount.Add(-1)
	}
	c.queue.Close()
	return nil
}
