package hw

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
	"github.com/smcgw/smcgw/verbs/internal/queues"
)

// pollBatch is how many completions one call of the library fetches.
const pollBatch = 256

// cq is a completion queue. Completions that were fetched before the caller asked wait in its stash, for two reasons:
// the loop may sleep on an armed queue only if it is empty, and providers drop the completions of a queue pair that is
// reset or destroyed.
type cq struct {
	vec      *vector
	h        ibv.CQ
	id       uint64
	depth    int64        // its size, at least what was requested
	reserved atomic.Int64 // completions that its queue pairs can have outstanding
	users    queues.Users // its queue pairs
	reported atomic.Bool  // the overrun event was raised
	overrun  atomic.Bool  // Poll reports the overrun
	closed   atomic.Bool

	graves graves

	// Owned by the loop.
	armed   bool
	members map[*qp]struct{} // queue pairs owned by the loop
	ended   bool             // its queue pairs have been ended
	stash   []stashed
	taken   int // number of stash entries already returned
	drained int // number of graves whose completions have all been fetched
	raw     [pollBatch]ibv.Completion
}

// stashed is a completion and the queue entry that is freed when it is polled.
type stashed struct {
	wc    verbs.WC
	queue *workQueue // nil: nothing to free
	entry uint32
}

// channel is a completion channel of the library.
type channel struct {
	h  ibv.Channel
	fd int
}

var _ verbs.CQ = (*cq)(nil)

// CreateCQ implements verbs.Device.
func (d *Device) CreateCQ(attr verbs.CQAttr) (verbs.CQ, error) {
	if attr.Vector < 0 || attr.Vector >= len(d.vectors) || attr.Depth < 1 || attr.Depth > d.attr.MaxCQE {
		return nil, fmt.Errorf("completion queue of vector %d, depth %d: %w", attr.Vector, attr.Depth, verbs.ErrInvalid)
	}
	if attr.Arrived != nil {
		return nil, fmt.Errorf("completion queue for other goroutines: %w", verbs.ErrNotSupported)
	}
	if err := d.hold(); err != nil {
		return nil, err
	}
	c := &cq{vec: d.vectors[attr.Vector], members: map[*qp]struct{}{}}
	if err := c.create(attr.Depth); err != nil {
		_ = d.release()
		return nil, err
	}
	d.use.cqs.Add(1)
	return c, nil
}

func (c *cq) create(depth int) (err error) {
	v := c.vec
	d := v.dev
	c.id = d.objects.add(c)
	h, granted, err := d.ctx.CreateCQ(depth, c.id, v.channel.h, v.comp)
	if err == nil {
		c.h = h
		c.depth = int64(granted)
		v.add(c)
		return nil
	}
	d.objects.remove(c.id)
	return failure("completion queue", err)
}

// hold is called before a queue pair is made that can have n completions outstanding. With BoundCQs there must be room
// for them.
func (c *cq) hold(n int) error {
	if err := c.users.Hold(); err != nil {
		return fmt.Errorf("completion queue: %w", err)
	}
	if got := c.reserved.Add(int64(n)); c.vec.dev.cfg.BoundCQs && got > c.depth {
		c.unhold(n)
		return fmt.Errorf("%d of %d completions reserved: %w", got-int64(n), c.depth, ErrCQFull)
	}
	return nil
}

// unhold ends a hold.
func (c *cq) unhold(n int) {
	c.reserved.Add(int64(-n))
	c.users.Release()
}

// Poll implements verbs.CQ. It makes one call of the library, or none if completions wait in the stash.
func (c *cq) Poll(wcs []verbs.WC) (int, error) {
	if c.closed.Load() {
		return 0, verbs.ErrClosed
	}
	n := c.unstash(wcs)
	if n == 0 {
		n = c.fetch(wcs)
	}
	if n == 0 && c.overrun.Load() {
		c.fatal()
		return 0, verbs.ErrCQOverrun
	}
	return n, nil
}

// fatal ends the queue pairs of a queue that overran (IBTA vol. 1, 11.6.3.2). Not all providers do that themselves.
func (c *cq) fatal() {
	if c.ended {
		return
	}
	c.ended = true
	for q := range c.members {
		q.condemn()
	}
}

// stashedNow returns the number of completions in the stash.
func (c *cq) stashedNow() int { return len(c.stash) - c.taken }

func (c *cq) unstash(wcs []verbs.WC) (n int) {
	for ; n < len(wcs) && c.taken < len(c.stash); c.taken++ {
		s := &c.stash[c.taken]
		if s.queue != nil {
			if s.queue.gone.Load() { // the next queue pair may have its number
				continue
			}
			s.queue.retire(s.entry)
		}
		wcs[n] = s.wc
		n++
	}
	if c.taken == len(c.stash) {
		clear(c.stash)
		c.stash, c.taken = c.stash[:0], 0
	}
	return n
}

// fetch moves completions from the library to the caller.
func (c *cq) fetch(wcs []verbs.WC) (n int) {
	for n < len(wcs) {
		raw := c.raw[:min(len(c.raw), len(wcs)-n)]
		got := c.poll(raw)
		for i := range raw[:got] {
			queue, entry, ok := c.resolve(&raw[i], &wcs[n])
			if !ok {
				continue
			}
			if queue != nil {
				queue.retire(entry)
			}
			n++
		}
		if got < len(raw) {
			break
		}
	}
	return n
}

// fill moves up to pollBatch completions from the library into the stash.
func (c *cq) fill() int {
	got := c.poll(c.raw[:])
	for i := range c.raw[:got] {
		var s stashed
		var ok bool
		if s.queue, s.entry, ok = c.resolve(&c.raw[i], &s.wc); ok {
			c.stash = append(c.stash, s)
		}
	}
	return got
}

// drain moves all completions into the stash.
func (c *cq) drain() {
	for c.fill() == len(c.raw) {
	}
}

// disown makes stashed completions free nothing of a queue that was reset or closed.
func (c *cq) disown(w *workQueue) {
	for i := range c.stash {
		if s := &c.stash[i]; s.queue == w {
			s.queue = nil
		}
	}
}

func (c *cq) poll(raw []ibv.Completion) int {
	d := c.vec.dev
	c.graves.free(d, c.drained) // the completions of the last call have been resolved
	dead := c.graves.len()
	n := d.ctx.Poll(c.h, raw)
	if c.drained = 0; n < len(raw) {
		c.drained = dead
	}
	if n < 0 { // the queue itself is broken
		d.overran(c)
		return 0
	}
	if n > 0 {
		d.completions.Add(uint64(n))
	}
	return n
}

// resolve converts a completion of the library into the caller's. It returns the queue entry to free when the caller
// gets it. It returns false for a completion that belongs to no work request.
func (c *cq) resolve(raw *ibv.Completion, wc *verbs.WC) (queue *workQueue, entry uint32, ok bool) {
	d := c.vec.dev
	w, entry := d.queueOf(raw.WRID), entryOf(raw.WRID)
	if w == nil || int(entry) >= len(w.ids) {
		d.strays.Add(1)
		return nil, 0, false
	}
	if w.gone.Load() { // the next queue pair may have its number
		return nil, 0, false
	}
	*wc = verbs.WC{
		WRID: w.ids[entry], QPNum: raw.QPNum, VendorErr: raw.VendorErr,
		Status: w.status(entry, verbs.WCStatus(raw.Status)),
	}
	if wc.Status == verbs.WCSuccess { // otherwise nothing else is valid (ibv_poll_cq(3))
		wc.Opcode = verbs.WCOpcode(raw.Opcode)
		if !w.send {
			w.received(raw, wc)
		}
	}
	return w, entry, true
}

const validFlags = verbs.WCGRH | verbs.WCWithImm | verbs.WCWithInv

// received sets the fields that only receives have. The library promises the source and GRH only for datagrams.
func (w *workQueue) received(raw *ibv.Completion, wc *verbs.WC) {
	wc.ByteLen, wc.Flags = raw.ByteLen, verbs.WCFlags(raw.Flags)&validFlags
	if wc.Flags&verbs.WCWithImm != 0 {
		wc.ImmData = raw.Imm()
	}
	if w.qp.kind == verbs.QPTUD {
		wc.SrcQP = raw.SrcQP
	} else {
		wc.Flags &^= verbs.WCGRH
	}
}

func (c *cq) Vector() int { return c.vec.index }

func (c *cq) Close() (err error) {
	busy := c.users.Close(func() error {
		err = c.destroy()
		return nil // it is closed in any case
	})
	if busy != nil {
		return fmt.Errorf("completion queue: %w", busy)
	}
	return err
}

func (c *cq) destroy() error {
	c.closed.Store(true)
	d := c.vec.dev
	c.vec.remove(c)
	d.objects.remove(c.id)
	c.graves.free(d, c.graves.len())
	err := d.ended("destroy completion queue", d.ctx.DestroyCQ(c.h))
	d.use.cqs.Add(-1)
	return errors.Join(err, d.release())
}
