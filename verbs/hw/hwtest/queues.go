package hwtest

import (
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// channel is a completion channel: the pending events of armed queues.
type channel struct {
	fd int

	mu     sync.Mutex // guards everything below
	events []uint64
}

// queue is a completion queue. Completions wait in it if the adapter forgets some.
type queue struct {
	cq      verbs.CQ
	arrived chan struct{}
	armed   atomic.Bool
	watched sync.WaitGroup
	ch      *channel
	id      uint64
	saved   []verbs.WC
	over    bool       // it overran: later completions are lost
	wcs     []verbs.WC // scratch
}

// pair is a queue pair.
type pair struct {
	qp         verbs.QP
	send, recv *queue
}

func (c *conn) CreateChannel() (ibv.Channel, int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return 0, 0, err
	}
	return enter[ibv.Channel](c, &channel{fd: fd}, nil, 0), fd, nil
}

// watch puts the events of the queue into its channel until it is destroyed.
func (q *queue) watch() {
	for range q.arrived {
		if q.armed.CompareAndSwap(true, false) {
			q.ch.mu.Lock()
			q.ch.events = append(q.ch.events, q.id)
			q.ch.mu.Unlock()
			ring(q.ch.fd)
		}
	}
}

func (c *conn) DestroyChannel(h ibv.Channel) error {
	ch := of[*channel](c, h)
	leave(c, h, nil)
	return unix.Close(ch.fd)
}

// CreateCQ implements ibv.Context. As with rxe, the size of a queue is a power of two less one.
func (c *conn) CreateCQ(depth int, id uint64, h ibv.Channel, vector int) (ibv.CQ, int, error) {
	if vector < 0 || vector > 1 {
		return 0, 0, unix.EINVAL
	}
	c.a.mu.Lock()
	c.a.comps = append(c.a.comps, vector)
	c.a.mu.Unlock()
	granted := roundUp(depth)
	q := &queue{ch: of[*channel](c, h), id: id, arrived: make(chan struct{}, 1)}
	var err error
	c.a.do("CreateCQ", func() {
		q.cq, err = c.a.dev.CreateCQ(verbs.CQAttr{Depth: granted, Arrived: q.arrived})
	})
	if err != nil {
		return 0, 0, errno(err)
	}
	q.watched.Go(q.watch)
	return enter[ibv.CQ](c, q, q.cq, id), granted, nil
}

func roundUp(depth int) int {
	n := 1
	for n <= depth {
		n *= 2
	}
	return n - 1
}

// DestroyCQ implements ibv.Context. Pending events of the queue vanish.
func (c *conn) DestroyCQ(h ibv.CQ) (err error) {
	q := of[*queue](c, h)
	c.a.do("DestroyCQ", func() { err = q.cq.Close() })
	if err != nil {
		return errno(err)
	}
	leave(c, h, q.cq)
	close(q.arrived)
	q.watched.Wait()
	q.ch.mu.Lock()
	defer q.ch.mu.Unlock()
	q.ch.events = slices.DeleteFunc(q.ch.events, func(id uint64) bool { return id == q.id })
	return nil
}

func (c *conn) Notify(cqs []ibv.CQ) error {
	c.a.do("Notify", func() {
		for _, h := range cqs {
			of[*queue](c, h).armed.Store(true)
		}
	})
	return nil
}

func (c *conn) Events(h ibv.Channel, ids []uint64) (n int) {
	ch := of[*channel](c, h)
	c.a.do("Events", func() {
		ch.mu.Lock()
		defer ch.mu.Unlock()
		n = copy(ids, ch.events)
		ch.events = ch.events[n:]
	})
	return n
}

func (c *conn) Poll(h ibv.CQ, wcs []ibv.Completion) (n int) {
	q := of[*queue](c, h)
	c.a.do("Poll", func() {
		if len(q.saved) < len(wcs) { // fewer than requested means that there are no more (ibv_poll_cq(3))
			q.fetch()
		}
		for n < len(wcs) && n < len(q.saved) {
			encode(&wcs[n], &q.saved[n])
			n++
		}
		q.saved = q.saved[n:]
	})
	return n
}

// fetch polls all completions of the device.
func (q *queue) fetch() {
	q.wcs = slices.Grow(q.wcs[:0], 64)[:64]
	for n := 1; n > 0 && !q.over; {
		var err error
		n, err = q.cq.Poll(q.wcs)
		q.saved = append(q.saved, q.wcs[:n]...)
		q.over = err != nil
	}
}

func encode(out *ibv.Completion, wc *verbs.WC) {
	*out = ibv.Completion{
		WRID: wc.WRID, Status: uint32(wc.Status), Opcode: uint32(wc.Opcode), VendorErr: wc.VendorErr, ByteLen: wc.ByteLen,
		QPNum: wc.QPNum, SrcQP: wc.SrcQP, Flags: uint32(wc.Flags),
	}
	out.SetImm(wc.ImmData)
	if wc.Status != verbs.WCSuccess { // the other fields are undefined
		out.Opcode, out.ByteLen, out.SrcQP, out.Flags = 0x55, 0xdeadbeef, 0xdeadbeef, 0xff
	}
}

func (c *conn) CreateQP(init *ibv.QPInit) (h ibv.QP, num uint32, err error) {
	c.slow()
	p := &pair{send: of[*queue](c, init.SendCQ), recv: of[*queue](c, init.RecvCQ)}
	attr := verbs.QPInitAttr{SendCQ: p.send.cq, RecvCQ: p.recv.cq, Cap: init.Cap, Type: init.Type, SQSigAll: init.SQSigAll}
	c.a.do("CreateQP", func() {
		if p.qp, err = of[verbs.PD](c, init.PD).CreateQP(&attr); err == nil {
			h, num = enter[ibv.QP](c, p, p.qp, init.ID), p.qp.Num()
		}
	})
	return h, num, errno(err)
}

func (c *conn) ModifyQP(h ibv.QP, attr *verbs.QPAttr, mask verbs.QPAttrMask) (err error) {
	p, a := of[*pair](c, h), *attr
	if mask&verbs.QPAttrAV != 0 {
		if a.AH, err = c.address(a.AH); err != nil {
			return err
		}
	}
	if mask&verbs.QPAttrPKeyIndex != 0 && c.a.inSubnet() != nil {
		if k, err := c.QueryPKey(1, int(a.PKeyIndex)); err != nil || k == 0 {
			return unix.EINVAL
		}
		a.PKeyIndex = 0 // the device has only one
	}
	c.a.do("ModifyQP", func() {
		if p.qp.State() == verbs.QPSReset && a.State == verbs.QPSErr { // as in the kernel's table
			err = verbs.ErrTransition
			return
		}
		if err = p.qp.Modify(&a, mask); err == nil && a.State == verbs.QPSReset && mask&verbs.QPAttrState != 0 {
			c.forget(p)
		}
	})
	return errno(err)
}

// forget removes the completions of a queue pair, if the adapter does that.
func (c *conn) forget(p *pair) {
	if !c.a.lib.Forgets {
		return
	}
	for _, q := range []*queue{p.send, p.recv} {
		q.fetch()
		q.saved = slices.DeleteFunc(q.saved, func(wc verbs.WC) bool { return wc.QPNum == p.qp.Num() })
	}
}

func (c *conn) QueryQPState(h ibv.QP) (s verbs.QPState, err error) {
	p := of[*pair](c, h)
	c.a.do("QueryQPState", func() { s = p.qp.State() })
	return s, nil
}

func (c *conn) DestroyQP(h ibv.QP) (err error) {
	c.slow()
	p := of[*pair](c, h)
	c.a.do("DestroyQP", func() {
		if err = p.qp.Close(); err == nil {
			c.forget(p)
		}
	})
	leave(c, h, p.qp)
	return errno(err)
}

// queues returns the completion queues of a context.
func (c *conn) queues() (list []*queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, obj := range c.objects {
		if q, ok := obj.(*queue); ok {
			list = append(list, q)
		}
	}
	return list
}
