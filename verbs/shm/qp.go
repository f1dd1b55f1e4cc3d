package shm

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/internal/queues"
)

// qp is a queue pair. An RC queue pair consumes the entry ring in its own block and publishes into the ring in its
// partner's block; a UD queue pair uses the rings of its vector.
//
//	qp.go          the object         modify.go   state machine
//	connect.go     finding the partner's block, news
//	send.go        send queue         write.go    placing payload, publishing
//	receive.go     entries and receive queue   datagram.go  UD
type qp struct {
	peer *Peer
	vec  *vector
	port *port // nil until RTR
	scq  *cq
	rcq  *cq

	blk block
	rem partner
	rq  queues.Receives
	sq  sendQueue

	num  uint32
	slot uint32
	gen  uint32
	typ  verbs.QPType
	log2 uint8
	sig  bool

	state  verbs.QPState
	closed bool
	queued bool // in vector.again
	timed  bool // in vector.timers
	fullS  bool // in scq.waiters
	fullR  bool // in rcq.waiters

	begun bool // the partner has sent a message

	cap  caps
	attr verbs.QPAttr

	rnrDeadline time.Time
}

var (
	_ verbs.QP           = (*qp)(nil)
	_ verbs.RemoteMapper = (*qp)(nil)
	_ verbs.RemoteReader = (*qp)(nil)
)

// caps is a verbs.QPCap, checked against the limits of the device.
type caps struct{ sendWR, recvWR, sendSGE, recvSGE, inline uint32 }

func capsOf(c verbs.QPCap) caps {
	return caps{
		sendWR: uint32(c.MaxSendWR), recvWR: uint32(c.MaxRecvWR),
		sendSGE: uint32(c.MaxSendSGE), recvSGE: uint32(c.MaxRecvSGE), inline: uint32(c.MaxInline),
	}
}

// block is our queue pair block. Indexes that the peer could corrupt are kept here; shared memory has only a copy.
type block struct {
	*blockWords
	ring []atomic.Uint64 // two words an entry
	off  uint64

	consumed uint64 // entries consumed
	receives uint64 // receives posted
}

// mask converts the number of an entry to its index in the ring.
func (b *block) mask() uint64 { return uint64(len(b.ring))/2 - 1 }

func (p *Peer) createQP(attr *verbs.QPInitAttr) (verbs.QP, error) {
	scq, ok1 := attr.SendCQ.(*cq)
	rcq, ok2 := attr.RecvCQ.(*cq)
	if !ok1 || !ok2 || scq.vec != rcq.vec || scq.vec.dev != p.dev || scq.queue.Closed() || rcq.queue.Closed() {
		return nil, fmt.Errorf("completion queues not of one vector of the device: %w", verbs.ErrInvalid)
	}
	if kindOf(attr.Type) == 0 {
		return nil, fmt.Errorf("%v queue pair: %w", attr.Type, verbs.ErrNotSupported)
	}
	if err := limits.Check(attr.Cap); err != nil {
		return nil, err
	}
	q := &qp{
		peer: p, vec: scq.vec, typ: attr.Type, cap: capsOf(attr.Cap), sig: attr.SQSigAll, scq: scq, rcq: rcq,
	}
	q.rq = queues.NewReceives(attr.Cap.MaxRecvWR, attr.Cap.MaxRecvSGE)
	entries := uint(minRing)
	if q.typ == verbs.QPTRC {
		entries = max(entries, uint(attr.Cap.MaxRecvWR))
	}
	q.log2 = uint8(bits.Len(entries - 1))
	if err := q.take(); err != nil {
		return nil, err
	}
	scq.users.Add(1)
	rcq.users.Add(1)
	return q, nil
}

// take allocates the number and block of the queue pair, and takes a reference to the peer.
func (q *qp) take() error {
	p := q.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refLocked(); err != nil {
		return err
	}
	slot, gen, ok := p.dev.slots.take()
	if !ok {
		p.unrefLocked()
		return fmt.Errorf("queue pairs: %w", verbs.ErrNoMemory)
	}
	off, err := p.takeBlockLocked(q.log2)
	if err != nil {
		p.dev.slots.put(slot)
		p.unrefLocked()
		return err
	}
	q.slot, q.gen, q.num = slot, gen, qpnOf(slot, gen)
	q.useBlock(off)
	p.qpCount++
	return nil
}

// useBlock publishes the block in the table.
func (q *qp) useBlock(off uint64) {
	p := q.peer
	q.blk = block{blockWords: p.own.block(off), ring: p.own.words(off+blkRing, 2<<q.log2), off: off}
	q.publishStatus(lifeAlive)
	e := p.own.words(p.ownLayout.qpEntry(q.slot), 2)
	e[1].Store(off)
	e[0].Store(uint64(q.gen)<<32 | uint64(q.vec.index)<<16 | uint64(q.log2)<<8 | kindOf(q.typ))
}

// kindOf returns the table's code of a transport, or 0 if the device lacks it.
func kindOf(t verbs.QPType) uint64 {
	switch t {
	case verbs.QPTRC:
		return kindRC
	case verbs.QPTUD:
		return kindDatagram
	case verbs.QPTUC, verbs.QPTGSI:
	}
	return 0
}

// dropBlock makes the block unreachable, tells the partner, and passes the memory to the grace period. slot is 0 if the
// queue pair keeps its slot.
//
// A partner that claimed the block before it was declared dead is told; a later one sees that it is dead. Telling
// writes to the partner's block, which only the loop can do safely (it cannot be reused before the loop's next
// Progress), so a queue pair that does not belong to the loop yet leaves it to the loop.
func (q *qp) dropBlock(slot uint32) {
	p := q.peer
	p.own.word(p.ownLayout.qpEntry(q.slot)).Store(0)
	q.publishStatus(lifeDead)
	o := orphan{peer: p, block: reclaimed{off: q.blk.off, size: blockSize(q.log2), log2: q.log2, slot: slot}}
	switch claim := q.blk.claim.Load(); {
	case q.rem.bound:
		q.tell(newsStatus)
	case claim != 0 && q.port != nil:
		q.port.tellClaimant(claim)
	case claim != 0:
		o.claim = claim
		q.vec.leave(o)
		return
	}
	o.retire()
}

func (q *qp) Num() uint32 { return q.num }

func (q *qp) Type() verbs.QPType { return q.typ }

func (q *qp) State() verbs.QPState { return q.state }

func (q *qp) Query() verbs.QPAttr {
	attr := q.attr
	attr.State, attr.CurState = q.state, q.state
	return attr
}

func (q *qp) Close() error {
	if q.closed {
		return nil
	}
	q.closed = true
	q.uninstall()
	q.dropBlock(q.slot)
	q.rem = partner{gone: true}
	q.scq.users.Add(-1)
	q.rcq.users.Add(-1)
	q.peer.mu.Lock()
	defer q.peer.mu.Unlock()
	q.peer.qpCount--
	q.peer.unrefLocked()
	return nil
}

// install makes the queue pair visible to the driver.
func (q *qp) install(pt *port) {
	q.port = pt
	pt.qps[q.slot] = q
	q.peer.dev.qps[q.slot].Store(q)
	q.vec.schedule(q)
}

func (q *qp) uninstall() {
	if q.port != nil {
		delete(q.port.qps, q.slot)
		q.peer.dev.qps[q.slot].CompareAndSwap(q, nil)
	}
}
