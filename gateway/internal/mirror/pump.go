package mirror

import (
	"fmt"
	"time"

	"github.com/smcgw/smcgw/inprocess"
)

// turnBytes is the most that an end sends of its ring in one turn, so that other ends get their share.
const turnBytes = 1<<20 - inprocess.Slack

// rx returns the memory in which the peer's bytes arrive.
func (e *End) rx() []byte { return e.mem.mirror[inprocess.RingAt:] }

// stirred reports whether the library has changed a word that the end acts on.
func (e *End) stirred() bool {
	o := e.own
	return e.phase == carrying && e.ended == lives && (o.head.Load() != e.head || o.tail.Load() != e.tail) ||
		o.flags.Load()&said != e.said.Flags || o.nx.Load() == 1 && !e.said.Opening.Opened
}

// arm asks the library to ring the bell for the next change. It returns false if a word has changed already. It asks to
// be rung for any read, too, if credits are due, since the peer may be out of them, and once the end gets cold with
// something unread.
func (e *End) arm(cold bool) bool {
	kind := uint32(inprocess.ArmSelf)
	if e.phase == carrying && (cold && e.tail != e.told || e.ep.CreditsDue()) {
		kind = inprocess.ArmRead
	}
	e.arms++
	e.mir.arm.Store(e.arms<<8 | kind) // before stirred: the library changes its words, then reads arm
	if e.stirred() {
		e.disarm()
		return false
	}
	return true
}

// disarm tells the library that the end looks by itself, without a bell.
func (e *End) disarm() { e.mir.arm.Store(0) }

// ringing handles the bell.
func (e *End) ringing() {
	e.shard.WorksFor(e.cfg.Owner)
	e.bells.Add(1)
	if e.ended == lives {
		e.cfg.Hub.heat(e)
	}
}

// later schedules Service for the end of the turn.
func (e *End) later() {
	if !e.queued {
		e.queued = true
		e.shard.Later(e)
	}
}

// Service implements loop.Servicer.
func (e *End) Service() {
	e.queued = false
	if e.phase == closed {
		return
	}
	e.hear()
	if e.phase == carrying && e.failure == nil {
		e.pump()
	}
	if e.phase < lost && e.failure != nil {
		e.lose(e.failure)
	}
	e.settle()
}

// rest has the peer told what the library has read, unless something happens before.
func (e *End) rest(now time.Time) {
	if e.phase == carrying && e.settled == nil && !e.finished && e.ep.OwesCredits() {
		e.shard.SetTimer(&e.rests, now.Add(restFor))
	}
}

func (e *End) rested() {
	e.shard.WorksFor(e.cfg.Owner)
	switch {
	case e.settled != nil:
		e.settles()
	case e.phase != carrying || e.finished || e.hot:
	default:
		if err := e.ep.ReturnCredits(); err != nil {
			e.fail(err)
		}
	}
}

// through reports whether the peer gateway has everything that the library has written, and knows what it has read, if
// anyone there still wants to know.
func (e *End) through() bool {
	return !e.queued && e.ep.Unposted() == 0 && e.ep.Placed() && (e.finished || e.ep.CreditsSettled())
}

// settle calls what waits for that.
func (e *End) settle() {
	if e.settled != nil && (e.phase != carrying || e.finished || e.through()) {
		e.settles()
	}
}

// settles calls it. A library that lives without the broker may not know that it is to open its direction no more.
func (e *End) settles() {
	e.say(e.mir.flags.Load() | inprocess.Gone)
	then := e.settled
	e.settled = nil
	then()
}

// hear tells the owner what is new in the library's words.
func (e *End) hear() {
	s := Said{Flags: e.own.flags.Load() & said, Opening: e.said.Opening, Questions: e.said.Questions}
	if !s.Opening.Opened {
		if o := e.opening(); o.Opened {
			s.Opening = o
		}
	}
	if s.Flags&inprocess.Asks != 0 && (s.Flags&^e.said.Flags)&(inprocess.Asks|inprocess.Recall) != 0 {
		s.Questions++
	}
	if s.Flags&inprocess.Asks == 0 && e.mir.flags.Load()&inprocess.Asks != 0 {
		e.mir.flags.Store(e.mir.flags.Load() &^ inprocess.Asks)
		e.announce() // it may wait for that with its next question
	}
	if s != e.said {
		e.said = s
		e.cfg.Owner.Said(s)
	}
}

// pump moves what can be moved, in both directions.
func (e *End) pump() {
	before := e.head + e.tail + e.told + e.freed
	if err := e.consume(); err != nil {
		e.fail(err)
		return
	}
	if err := e.send(); err != nil {
		e.fail(err)
		return
	}
	if (e.ended != lives || e.settled != nil) && !e.finished {
		if err := e.ep.ReturnCredits(); err != nil {
			e.fail(err)
			return
		}
	}
	e.free() // first: at the end of the peer's process the library looks whether that had read all
	e.arrive()
	if err := e.ep.Err(); err != nil {
		e.fail(err)
		return
	}
	if e.ended != lives {
		e.drain()
	} else if e.head+e.tail+e.told+e.freed != before {
		e.cfg.Hub.heat(e)
	}
}

// consume takes note of what the library has read, and grants that room to the peer again.
func (e *End) consume() error {
	tail := e.own.tail.Load()
	n := tail - e.tail
	switch {
	case n == 0:
		return nil
	case n > e.told-e.tail:
		return fmt.Errorf("read to %d of %d: %w", tail, e.told, ErrNonsense)
	}
	e.tail = tail
	return e.ep.Consume(int(n))
}

// send hands what the library has written to the stream.
func (e *End) send() error {
	head, ring := e.own.head.Load(), e.ep.SendRing()
	n := head - e.head
	switch {
	case n > e.size-(e.head-ring.FreedTo()):
		return fmt.Errorf("written to %d, from %d: %w", head, ring.FreedTo(), ErrNonsense)
	case n > turnBytes:
		n = turnBytes
		e.later()
	}
	for piece := uint64(e.picked.ReadCap()) - inprocess.Slack; ; {
		part := min(n, piece, e.size-e.head&(e.size-1))
		if err := ring.Produce(int(part)); err != nil {
			return err
		}
		if _, err := e.ep.Pump(); err != nil { // it may have held back what was handed over before
			return err
		}
		e.head += part
		e.cfg.Hub.moved += part
		if n -= part; n == 0 {
			return nil
		}
	}
}

// arrive publishes what has arrived to the library.
func (e *End) arrive() {
	to := e.ep.ReceivedOffset()
	if to == e.told {
		return
	}
	if e.copies {
		e.land(to)
	}
	e.cfg.Hub.moved += to - e.told
	e.told = to
	e.mir.head.Store(to)
	e.ring()
	e.shut()
}

// land copies what has arrived into the mirror, at the same offsets.
func (e *End) land(to uint64) {
	from, ring := e.ep.Ring(), e.rx()
	for at := e.told; at != to; {
		i := at & (e.size - 1)
		n := copy(ring[i:min(e.size, i+to-at)], from[i:])
		at += uint64(n)
	}
}

// free publishes to the library how much the peer's library has read.
func (e *End) free() {
	to := e.ep.FreedOffset()
	if to == e.freed {
		return
	}
	e.freed = to
	e.mir.tail.Store(to)
	if want := e.own.want.Load(); want != e.room && e.head-to <= e.size/2 {
		e.room = want
		e.wakeWriter()
	}
}

// wakeWriter wakes writers that wait for room, also for them to see the end of the carrier.
func (e *End) wakeWriter() {
	e.mir.room.Add(1)
	wake(&e.mir.room)
}

// shut sets SHUT once everything has come that the peer's process had written. This may happen after the carrier is
// lost: the peer gateway gives it up as soon as it has delivered everything.
func (e *End) shut() {
	switch {
	case !e.finished:
	case e.told == e.final:
		e.say(e.mir.flags.Load() | inprocess.Shut)
	case e.told > e.final && e.phase == carrying:
		e.fail(fmt.Errorf("%d bytes have come of %d: %w", e.told, e.final, ErrNonsense))
	}
}

// drain reports to the owner, once, that the peer gateway has everything that the process had written, and knows what
// that had read.
func (e *End) drain() {
	if e.ended == died && e.through() {
		e.ended = drained
		flags := e.own.flags.Load()
		e.cfg.Owner.Drained(e.head, e.own.got.Load(), flags&inprocess.Reset != 0 && (flags&inprocess.Whole == 0 || !e.sent))
	}
}
