package shm

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// AnyQPN as QPAttr.DestQPNum in the move to RTR means whichever queue pair of the peer connects to this one. Until then
// sends wait.
const AnyQPN = 0

// Life of a queue pair, in the status word of its block.
const (
	lifeAlive = 1
	lifeErr   = 2 // in ERR: published entries are no longer received
	lifeDead  = 3 // closed: the block is about to be reused
)

// News for a queue pair, from its partner.
const (
	newsClaim  = 1 << 0 // the claim word has changed
	newsStatus = 1 << 1 // the partner's status has changed
	newsFault  = 1 << 2 // the partner accessed memory that it may not access
	newsBad    = 1 << 3 // the partner made an invalid request
)

// partner is the queue pair that this one sends to, as its block in the peer's memory.
type partner struct {
	*blockWords
	ring []uint64 // two words an entry

	bound  bool
	gone   bool // the partner is gone; the other fields are invalid
	rnr    uint8
	vector uint16
	qpn    uint32
	access verbs.Access

	published uint64 // entries published, each using a receive
	consSeen  uint64
	postSeen  uint64
}

// mask converts the number of an entry to its index in the ring.
func (r *partner) mask() uint64 { return uint64(len(r.ring))/2 - 1 }

// publishStatus publishes what the partner must know of this queue pair: life | min_rnr_timer<<16 | access<<32.
func (q *qp) publishStatus(life uint64) {
	q.blk.status.Store(life | uint64(q.attr.MinRNRTimer)<<16 | uint64(q.attr.Access)<<32)
}

// connect binds the queue pair to dest; for AnyQPN it is bound when a queue pair claims it.
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

// entry is an RC queue pair in the table of its owner.
type entry struct {
	vector int
	log2   uint8
	off    uint64
}

// findQP looks a queue pair up in the peer's table; found means that it exists, at a valid place. The caller's loop
// must not pass a Progress while it uses the result, so the block is not reused meanwhile.
func (p *Peer) findQP(qpn uint32) (e entry, found bool) {
	w := p.rem.words(p.remLayout.qpEntry(slotOf(qpn)), 2)
	word, off := w[0].Load(), w[1].Load()
	e = entry{vector: int(word >> 16 & 0xffff), log2: uint8(word >> 8), off: off}
	if w[0].Load() != word || word&0xff != kindRC || qpnOf(slotOf(qpn), uint32(word>>32)) != qpn {
		return entry{}, false
	}
	if e.vector >= len(p.targets) || !validLog2(e.log2) || off%8 != 0 ||
		off < p.remLayout.arena || !fits(off, blockSize(e.log2), p.rem.size()) {
		return entry{}, false
	}
	return e, true
}

// bind finds the block of the peer's queue pair and claims it.
func (q *qp) bind(dest uint32) error {
	p := q.peer
	e, found := p.findQP(dest)
	if !found {
		return fmt.Errorf("queue pair %#x of %v: %w", dest, p, verbs.ErrRemoteGone)
	}
	blk := p.rem.block(e.off)
	if blk.prod.Load()|blk.cons.Load() != 0 { // we were reset and the partner was not
		return fmt.Errorf("queue pair %#x of %v has been in use: %w", dest, p, verbs.ErrRemoteGone)
	}
	if !blk.claim.CompareAndSwap(0, uint64(q.num)) && blk.claim.Load() != uint64(q.num) {
		return fmt.Errorf("queue pair %#x of %v is connected to another one: %w", dest, p, verbs.ErrRemoteGone)
	}
	q.rem = partner{
		blockWords: blk, ring: p.rem.plainWords(e.off+blkRing, 2<<e.log2),
		bound: true, qpn: dest, vector: uint16(e.vector),
	}
	if q.lookPartner(); q.rem.gone {
		return fmt.Errorf("queue pair %#x of %v is closed or in ERR: %w", dest, p, verbs.ErrRemoteGone)
	}
	return nil
}

// bindClaimant binds a queue pair that waits for its partner, once one has claimed it.
func (q *qp) bindClaimant() {
	claim := q.blk.claim.Load()
	if q.rem.bound || q.rem.gone || q.state == verbs.QPSErr || claim == 0 || claim > 0xffffff || q.peer.down.Load() {
		return
	}
	if err := q.bind(uint32(claim)); err != nil {
		q.peer.dev.cfg.Logger.Debug("shm claimant not usable", "qpn", q.num, "err", err.Error())
	}
}

// lookPartner reads the partner's status. A partner that no longer receives is forgotten immediately: its block may be
// reused after this Progress.
func (q *qp) lookPartner() {
	if !q.rem.bound {
		return
	}
	s := q.rem.status.Load()
	q.rem.access, q.rem.rnr = verbs.Access(s>>32), uint8(s>>16)
	if s&0xff != lifeAlive {
		q.rem = partner{gone: true, qpn: q.rem.qpn}
	}
}

// tell leaves news for the partner.
func (q *qp) tell(news uint64) {
	if q.rem.bound && q.port != nil && !q.peer.down.Load() {
		q.rem.news.Or(news)
		q.port.notify(int(q.rem.vector), slotOf(q.rem.qpn))
	}
}

// hear handles news of the partner and returns them.
func (q *qp) hear() (news uint64) {
	if q.blk.news.Load() == 0 {
		return 0
	}
	news = q.blk.news.Swap(0)
	q.bindClaimant()
	q.lookPartner()
	return news
}
