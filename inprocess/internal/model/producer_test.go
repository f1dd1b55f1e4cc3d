package model

import "slices"

// Places of the producer: each makes one access, and what follows of it.
type producerPlace uint8

const (
	pCall producerPlace = iota
	pPromote
	pTransition
	pPublish
	pLookAgain
	pFlagsAgain
	pTail
	pBase
	pSize
	pExtend
	pHead
	pFence
	pArm
	pSleeps
	pCount
	pToken
	pSend
	pSent
	pOut
	pRoom
	pWant
	pWantFence
	pTailAgain
	pFlagsWait
	pFutex
	pAsleep
	pFrozen
	pFrozenTransition
	pFrozenPublish
	pFrozenHead
	pFin
	pEnd
)

var producerNames = [...]string{
	"call: R(flags)", "promote: R(cx), SIOCOUTQ", "W(x)", "W(nx)", "F", "R(flags) again", "R(tail)", "W(base)", "W(order)", "W(order) in place", "copy, W(head)",
	"F", "R(arm)", "R(sleeps)", "W(ksent)", "token", "send", "W(ksent) of data", "POLLOUT", "R(room)", "W(want)", "F",
	"R(tail) again", "R(flags) before waiting", "futex", "asleep", "frozen: R(tail)", "frozen: W(x)", "frozen: W(nx)", "frozen: W(head)", "FIN", "end",
}

const (
	recalled = 1
	frozen   = 2
)

// Whom arm says to wake, in its low bits.
const (
	nobody = iota
	self
	slot
	whom = 3
)

// cell is one byte of the ring's memory.
type cell struct {
	value uint8
	at    uint8 // when it was stored, of cells
	read  uint8 // when it was copied last, of copied
}

const mostCells = 8

type producerConn struct {
	ring           bool // the extent
	first          bool // of a ring extent: the next bytes send a token whatever arm says
	toRing         bool
	fin            bool
	late           bool
	stays          bool // open, with nothing more to send
	head, base     uint8
	size           uint8
	tail           uint8
	ksent, nx      uint8
	want, room     uint8
	rung           uint16
	sent, returned uint8 // bytes given to the ring or the kernel; by calls that have returned
	back, backEnd  uint8 // taken back from a frozen ring: data back to backEnd go by the kernel first
	at             [16]uint8
	memory         [mostCells]cell
}

type producerState struct {
	pc         producerPlace
	i          uint8 // connection of the call
	dead       bool
	broken     bool // a send failed
	woken      bool
	promotions uint8
	demotions  uint8
	rungSleep  uint8 // of the slot that all connections are in
	conn       [connections]producerConn
}

func (p *producerState) append(b []byte, s *state) []byte {
	b = append(b, byte(p.pc), p.i, bits(p.dead, p.broken, p.woken), p.promotions, p.demotions, p.rungSleep)
	for i := range s.conns {
		c := &p.conn[i]
		b = append(b, bits(c.ring, c.first, c.toRing, c.fin, c.late, c.stays), c.head, c.base, c.size, c.tail, c.ksent, c.nx, c.want, c.room,
			byte(c.rung), byte(c.rung>>8), c.sent, c.returned, c.back, c.backEnd)
		known, knownToo := s.memory[producer].seen[word(i)*producerWords+cells], s.memory[consumer].seen[word(i)*consumerWords+copied]
		for j := range s.largest {
			m := &c.memory[j]
			b = append(b, m.value, m.at-min(m.at, known), m.read-min(m.read, knownToo))
		}
		b = append(b, c.at[:]...)
	}
	return b
}

func (s *state) producerAt() string { return producerNames[s.p.pc] }

func (s *state) producerCan() bool {
	k := &s.kernel[s.p.i]
	switch s.p.pc {
	case pEnd:
		return false
	case pOut:
		return !s.p.dead && (!k.full(s) || k.closed)
	case pAsleep: // looks at the kernel now and then
		return !s.p.dead && (s.p.woken || k.closed)
	default:
		return !s.p.dead
	}
}

// producerAlone: who loads a word may still get the old value when the store is made at once, so stores need not wait.
func (s *state) producerAlone() bool {
	switch s.p.pc {
	case pTransition, pPublish, pBase, pSize, pExtend, pHead, pCount, pSent, pWant, pFrozenTransition, pFrozenPublish, pFrozenHead:
		return true
	default:
		return false
	}
}

func pack(r, k uint8) uint16 { return uint16(r)<<8 | uint16(k) }

// ordered is the order of an access, unless a mutation takes it away.
func (s *state) ordered(o order, without mutation) order {
	if s.mutation == without {
		return relaxed
	}
	return o
}

func (s *state) producerStep() {
	p := &s.p
	if p.pc == pCall && s.conns > 1 {
		var open []uint8
		for i := range s.conns {
			if c := &p.conn[i]; !c.fin && !c.stays {
				open = append(open, uint8(i))
			}
		}
		p.i = open[s.choose(len(open))]
	}
	c, k := &p.conn[p.i], &s.kernel[p.i]
	store := func(w word, v uint16, o order) { s.store(producer, word(p.i)*producerWords+w, v, o) }
	load := func(w word, o order) uint16 { return s.load(producer, word(p.i)*consumerWords+w, o) }
	used := func() uint8 { return c.head - c.tail }
	switch p.pc {
	case pCall:
		f := load(flags, acquire)
		switch {
		case c.ring && f&frozen != 0:
			p.pc = pFrozen
		case c.ring && f&recalled != 0:
			c.toRing, p.pc = false, pTransition
		case c.back < c.backEnd:
			p.pc = pSend
		case int(c.sent) == s.bytes && !s.freeze && (s.noEnd || s.choose(2) == 1):
			c.stays = true
			s.return_()
		case int(c.sent) == s.bytes:
			p.pc = pFin
		case c.ring && p.demotions > 0 && s.choose(2) == 1:
			p.demotions--
			c.toRing, p.pc = false, pTransition
		case c.ring:
			p.pc = pTail
		case p.promotions > 0 && f&recalled == 0 && s.choose(2) == 1:
			p.pc = pPromote
		default:
			p.pc = pSend
		}

	// Promote, spill, demote: W(x) W(nx), then the first byte.
	case pPromote:
		passed := load(cx, acquire) == uint16(c.nx) || s.mutation == promoteEarly
		if passed && (len(k.way) == 0 || s.mutation == promoteUnacked) {
			p.promotions--
			c.toRing, p.pc = true, pTransition
			if s.mutation == byteBeforePromote {
				c.late, p.pc = true, pTail
			}
		} else {
			p.pc = pSend
		}
	case pTransition:
		if s.mutation == byteBeforeSpill && !c.toRing && !c.late && !k.full(s) {
			// The byte first, at the position that the transition names.
			c.late = true
			s.send(k, c.sent+1)
			return
		}
		if s.mutation == publishFirst && !c.late {
			c.late = true
			store(nx, uint16(c.nx+1), release)
			return
		}
		store(x0+word(c.nx%2), pack(c.head, c.ksent), relaxed)
		p.pc = pPublish
	case pPublish:
		if s.mutation != publishFirst {
			store(nx, uint16(c.nx+1), s.ordered(release, publishRelaxed))
		}
		c.nx++
		c.ring, c.first = c.toRing, c.toRing && s.mutation != noFirstToken
		switch {
		case s.mutation == byteBeforeSpill && c.late:
			c.late = false
			c.sent++
			c.ksent++
			p.pc = pSent
		case !c.ring:
			c.late = false
			if p.pc = pSend; int(c.sent) == s.bytes {
				s.return_()
			}
		case (s.recall || s.freeze) && s.mutation != noFlagsAgain:
			c.late = false
			p.pc = pLookAgain
		default:
			c.late = false
			p.pc = pTail
		}
	case pLookAgain:
		s.fence(producer)
		p.pc = pFlagsAgain
	case pFlagsAgain:
		p.pc = pTail
		if load(flags, acquire)&recalled != 0 {
			c.toRing, p.pc = false, pTransition
		}

	// Produce: R(tail), W(base) W(order), copy, W(head), F, R(arm), R(sleeps).
	case pTail:
		c.tail = uint8(load(tail, s.ordered(acquire, tailLoadRelaxed)))
		p.pc = pHead
		switch {
		case c.tail == c.head || s.mutation == baseWhileUnread && used() < c.size:
			p.pc = pBase
		case used() < c.size:
		case s.extends && 2*int(c.size) <= s.largest && (c.head-c.base <= c.size || s.mutation == extendWrapped) && s.choose(2) == 1:
			p.pc = pExtend
		case s.blocks:
			p.pc = pRoom
		default:
			c.toRing, p.pc = false, pTransition
		}
	case pBase:
		c.base = c.head
		store(base, uint16(c.base), relaxed)
		p.pc = pHead
		if s.smallest < s.largest {
			p.pc = pSize
		}
	case pSize:
		c.size = s.newSize(c.size)
		store(size, uint16(c.size), relaxed)
		p.pc = pHead
	case pExtend:
		c.size *= 2
		store(size, uint16(c.size), relaxed)
		p.pc = pHead
	case pHead:
		if s.mutation == headFirst && !c.late {
			c.late = true
			store(head, uint16(c.head+1), release)
			return
		}
		c.sent++
		s.put(c, c.head, c.sent)
		c.at[c.head] = c.sent
		c.head++
		if s.mutation != headFirst {
			store(head, uint16(c.head), s.ordered(release, headRelaxed))
		}
		p.pc = pFence
		if s.mutation == byteBeforePromote && c.late {
			c.head-- // where the transition is
			store(x0+word(c.nx%2), pack(c.head, c.ksent), relaxed)
			c.head++
			c.ring, c.first = true, true
			store(nx, uint16(c.nx+1), release)
			c.nx++
		}
		c.late = false
	case pFence:
		if s.mutation != noProducerFence {
			s.fence(producer)
		}
		p.pc = pArm
	case pArm:
		a := load(arm, relaxed)
		again := a == c.rung
		switch {
		case c.first:
			c.first, p.pc = false, pCount
			if a&whom == self {
				c.rung = a
			}
		case a&whom == self && !again:
			c.rung, p.pc = a, pCount
		case a&whom == slot:
			p.pc = pSleeps
		default:
			s.return_()
		}
		if p.pc == pCount && s.mutation == tokenFirst {
			p.pc = pToken
		}
	case pSleeps:
		v := uint8(s.load(producer, sleeps, relaxed))
		if v == 0 || v == p.rungSleep {
			s.return_()
			return
		}
		p.rungSleep, p.pc = v, pCount
	case pCount:
		c.ksent++
		store(ksent, uint16(c.ksent), s.ordered(release, countRelaxed))
		p.pc = pToken
		if s.mutation == tokenFirst {
			s.return_()
		}
	case pToken:
		switch {
		case k.closed:
			p.broken, p.pc = true, pEnd
		case k.full(s):
			s.fail("the kernel refuses a token")
		default:
			s.send(k, token)
			s.return_()
			if s.mutation == tokenFirst {
				p.pc = pCount
			}
		}

	// By the kernel.
	case pSend:
		v := c.sent + 1
		if c.back < c.backEnd {
			v = c.back
		}
		switch {
		case k.closed:
			p.broken, p.pc = true, pEnd
		case k.full(s):
			p.pc = pOut
		default:
			s.send(k, v)
			if c.back < c.backEnd {
				c.back++
			} else {
				c.sent++
			}
			c.ksent++
			p.pc = pSent
		}
	case pSent:
		store(ksent, uint16(c.ksent), s.ordered(release, countRelaxed))
		s.return_()
	case pOut:
		s.return_()

	// Room: R(room), W(want), F, R(tail), futex.
	case pRoom:
		c.room = uint8(load(room, acquire))
		p.pc = pWant
	case pWant:
		c.want++
		store(want, uint16(c.want), relaxed)
		p.pc = pWantFence
	case pWantFence:
		if s.mutation != noWantFence {
			s.fence(producer)
		}
		p.pc = pTailAgain
	case pTailAgain:
		c.tail = uint8(load(tail, relaxed))
		switch {
		case used() < c.size && s.mutation != noTailAgain:
			p.pc = pTail
		case s.recall || s.freeze:
			p.pc = pFlagsWait
		default:
			p.pc = pFutex
		}
	case pFlagsWait:
		p.pc = pFutex
		if load(flags, relaxed)&recalled != 0 {
			p.pc = pCall
		}
	case pFutex:
		if s.mutation == roomLate {
			c.room = uint8(s.newest(producer, word(p.i)*consumerWords+room))
		}
		p.woken, p.pc = false, pAsleep
		if uint8(s.newest(producer, word(p.i)*consumerWords+room)) != c.room {
			// The caller comes to see what the kernel saw.
			s.load(producer, word(p.i)*consumerWords+room, latest)
			p.pc = pCall
		}
	case pAsleep:
		if p.pc = pCall; !p.woken { // the peer is gone
			c.toRing, p.pc = false, pTransition
		}

	// Frozen: what is after tail goes by the kernel.
	case pFrozen:
		c.tail = uint8(load(tail, acquire))
		p.pc = pFrozenTransition
	case pFrozenTransition:
		store(x0+word(c.nx%2), pack(c.tail, c.ksent), relaxed)
		p.pc = pFrozenPublish
	case pFrozenPublish:
		c.nx++
		store(nx, uint16(c.nx), release)
		p.pc = pFrozenHead
	case pFrozenHead:
		if c.tail < c.head {
			c.back, c.backEnd = c.at[c.tail], c.at[c.head-1]+1
		}
		c.head = c.tail
		store(head, uint16(c.head), release)
		c.ring = false
		p.pc = pCall

	case pFin:
		k.way = append(slices.Clip(k.way), segment{finMark, s.memory[producer].now})
		c.fin = true
		s.return_()

	case pEnd: // no step: see producerCan
	}
}

// return_ ends a call.
func (s *state) return_() {
	p := &s.p
	p.conn[p.i].returned = p.conn[p.i].sent
	p.pc = pEnd
	for i := range s.conns {
		if c := &p.conn[i]; !c.fin && !c.stays {
			p.pc = pCall
		}
	}
}

// newSize: a ring grows and shrinks when it is empty.
func (s *state) newSize(n uint8) uint8 {
	sizes := []uint8{n}
	if int(n)*2 <= s.largest {
		sizes = append(sizes, n*2)
	}
	if int(n)/2 >= s.smallest {
		sizes = append(sizes, n/2)
	}
	return sizes[s.choose(len(sizes))]
}

// put stores a byte into the ring.
func (s *state) put(c *producerConn, at, value uint8) {
	m := &c.memory[(at-c.base)%c.size]
	if m.read > s.memory[consumer].seen[word(s.p.i)*consumerWords+copied] {
		s.fail("a byte of the ring is stored while it may still be read")
	}
	m.value, m.at = value, s.mark(producer, word(s.p.i)*producerWords+cells)
}

func (s *state) killProducer() {
	s.p.dead = true
	k := &s.kernel[0]
	end := uint8(finMark)
	if s.choose(2) == 1 { // a token in its own queue was unread
		end = rstMark
		if len(k.way) > 0 && s.choose(2) == 1 {
			k.way = nil
		}
	}
	k.way = append(slices.Clip(k.way), segment{end, s.memory[producer].now})
}
