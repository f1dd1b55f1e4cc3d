package shm

import (
	"fmt"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
)

// AnyQPN as QPAttr.DestQPNum in the move to RTR means: whichever queue pair of
// the peer connects to this one. Until then sends wait.
const AnyQPN = 0

// Life of a queue pair, in the status word of its block.
const (
	lifeAlive = 1
	lifeErr   = 2 // in ERR: nothing published is received any more
	lifeDead  = 3 // closed: the block is about to be recycled
)

const statusShared = 1 << 24

// News for a queue pair, from its partner.
const (
	newsClaim  = 1 << 0 // the claim word has changed
	newsStatus = 1 << 1 // the partner's status has changed
	newsFault  = 1 << 2 // the partner tried to write where it may not
)

// partner is the queue pair this one sends to: its block, in the peer's memory.
type partner struct {
	bound  bool
	gone   bool // was there and is not any more; none of the rest is valid
	qpn    uint32
	vector int
	access verbs.Access
	rnr    uint8
	shared bool // its receives are shared: nobody can know how many there are

	prod   *atomic.Uint64
	cons   *atomic.Uint64
	posted *atomic.Uint64
	status *atomic.Uint64
	want   *atomic.Uint64
	news   *atomic.Uint64
	starve *atomic.Uint64
	ring   []uint64
	mask   uint64

	published uint64 // entries published
	used      uint64 // receives used up by them
	consSeen  uint64
	postSeen  uint64
}

// publishStatus announces what the partner must know of this queue pair:
// life | why<<8 | min_rnr_timer<<16 | shared receives<<24 | access<<32.
func (q *qp) publishStatus(life uint64, why verbs.WCStatus) {
	word := life | uint64(why)<<8 | uint64(q.attr.MinRNRTimer)<<16 | uint64(q.attr.Access)<<32
	if q.srq != nil {
		word |= statusShared
	}
	q.blk.status.Store(word)
}

// connect binds the queue pair to dest, or leaves that to the one that claims it.
func (q *qp) connect(dest uint32) error {
	if dest == AnyQPN {
		return nil
	}
	if !q.blk.claim.CompareAndSwap(0, uint64(dest)) && q.blk.claim.Load() != uint64(dest) {
		return fmt.Errorf("queue pair %#x is connected to another one: %w", q.num, verbs.ErrRemoteGone)
	}
	if err := q.bind(dest); err != nil {
		q.blk.claim.CompareAndSwap(uint64(dest), 0)
		return err
	}
	q.tell(newsClaim)
	return nil
}

// findQP reads the peer's table. The loop's vector has not passed a Progress
// when the result is used, so the block is not recycled meanwhile.
func (p *Peer) findQP(qpn uint32) (vector int, log2 uint8, off uint64, err error) {
	e := p.rem.words(p.remLayout.qpEntry(slotOf(qpn)), 2)
	word, off := e[0].Load(), e[1].Load()
	vector, log2 = int(word>>16&0xffff), uint8(word>>8)
	if e[0].Load() != word || word&0xff != kindRing || qpnOf(slotOf(qpn), uint32(word>>32)) != qpn {
		return 0, 0, 0, fmt.Errorf("queue pair %#x of %v: %w", qpn, p, verbs.ErrRemoteGone)
	}
	if vector >= len(p.targets) || !validLog2(log2) || off%8 != 0 ||
		off < p.remLayout.arena || !fits(off, blockSize(log2), p.rem.size()) {
		return 0, 0, 0, fmt.Errorf("queue pair %#x of %v at %#x, %#x: %w", qpn, p, word, off, verbs.ErrRemoteGone)
	}
	return vector, log2, off, nil
}

// bind finds the block of the peer's queue pair and claims it.
func (q *qp) bind(dest uint32) error {
	p := q.peer
	vector, log2, off, err := p.findQP(dest)
	if err != nil {
		return err
	}
	claim := p.rem.word(off + blkClaim)
	if !claim.CompareAndSwap(0, uint64(q.num)) && claim.Load() != uint64(q.num) {
		return fmt.Errorf("queue pair %#x of %v is connected to another one: %w", dest, p, verbs.ErrRemoteGone)
	}
	w := func(o uint64) *atomic.Uint64 { return p.rem.word(off + o) }
	q.rem = partner{
		bound: true, qpn: dest, vector: vector,
		prod: w(blkProd), cons: w(blkCons), posted: w(blkPosted), status: w(blkStatus), want: w(blkWant), news: w(blkNews),
		starve: w(blkStarve),
		ring:   p.rem.plainWords(off+blkRing, 2<<log2), mask: 1<<log2 - 1,
	}
	if q.lookPartner(); q.rem.gone {
		return fmt.Errorf("queue pair %#x of %v is closed or in ERR: %w", dest, p, verbs.ErrRemoteGone)
	}
	return nil
}

// bindClaimant binds a queue pair that waits for whoever connects, if someone has.
func (q *qp) bindClaimant() {
	claim := q.blk.claim.Load()
	if q.rem.bound || q.rem.gone || q.state == verbs.QPSErr || claim == 0 || claim > 0xffffff || q.peer.down.Load() {
		return
	}
	if err := q.bind(uint32(claim)); err != nil {
		q.peer.dev.cfg.Logger.Debug("shm claimant not usable", "qpn", q.num, "err", err.Error())
	}
}

// lookPartner reads the partner's status. A partner that does not receive any
// more is forgotten at once: its block may be recycled after this Progress.
func (q *qp) lookPartner() {
	if !q.rem.bound {
		return
	}
	s := q.rem.status.Load()
	q.rem.access, q.rem.rnr, q.rem.shared = verbs.Access(s>>32), uint8(s>>16), s&statusShared != 0
	if s&0xff != lifeAlive {
		why := verbs.WCStatus(s >> 8)
		if why != verbs.WCRemInvReqErr && why != verbs.WCRemOpErr {
			why = verbs.WCRetryExcErr
		}
		q.seeConsumed()
		q.sq.nak = why
		q.rem = partner{gone: true, qpn: q.rem.qpn}
	}
}

// tell leaves news for the partner.
func (q *qp) tell(news uint64) {
	if q.rem.bound && q.port != nil && !q.peer.down.Load() {
		q.rem.news.Or(news)
		q.port.notify(q.rem.vector, slotOf(q.rem.qpn))
	}
}

// hear acts on news of the partner. It tells whether the partner found that it
// may not do what it was about to.
func (q *qp) hear() (fault bool) {
	if q.blk.news.Load() == 0 {
		return false
	}
	news := q.blk.news.Swap(0)
	q.bindClaimant()
	q.lookPartner()
	return news&newsFault != 0
}
