package model

// mode is how the consumer waits.
type mode uint8

const (
	blockingRead mode = iota // recv(MSG_PEEK) in the kernel
	levelWait                // a waiter that is not the library's: tokens alone must wake it
	edgeWait                 // EPOLLET, reads until EAGAIN
	slotWait                 // all connections are in one set, whose process has a slot
)

type consumerPlace uint8

const (
	cCall consumerPlace = iota
	cKernelNx
	cKernelX
	cKernelRead
	cPass
	cInq
	cInqNx
	cInqRead
	cHead
	cNx
	cX
	cBase
	cSize
	cTail
	cRoomFence
	cWant
	cRoom
	cWake
	cDrop
	cSettleCount
	cSettleLook
	cSettleFew
	cSettleArm
	cSettleFence
	cSettleHead
	cSettleNx
	cTake
	cArmSlot
	cPeek
	cTry
	cWait
	cSlotCount
	cSleep
	cSleepFence
	cLookHead
	cLookNx
	cSlotTake
	cSlotWait
	cAwake
	cRecall
	cRecallRoom
	cRecallWake
	cFreezeFence
	cFreeze
	cFrozenNx
	cFrozenX
	cFrozenDrop
	cFrozenToken
	cFrozenWait
	cFrozenPass
	cRaw
	cEnd
)

var consumerNames = [...]string{
	"call", "kernel: R(nx)", "kernel: R(x)", "kernel: recv to k", "W(cx)", "SIOCINQ", "R(nx) again", "recv q", "R(head)", "R(nx)", "R(x)", "R(base)",
	"R(order), copy", "W(tail)", "F", "R(want)", "W(room)", "futex wake", "drop tokens", "settle: R(ksent)", "settle: R(nx) before", "settle: take but one", "settle: W(arm)", "settle: F",
	"settle: R(head)", "settle: R(nx)", "settle: take", "W(arm), slot", "recv(MSG_PEEK)", "try", "wait", "R(ksent) before sleep", "W(sleeps)", "F",
	"look: R(head)", "look: R(nx)", "take before sleep", "epoll_wait", "W(sleeps, 0)", "W(flags)", "recall: W(room)", "recall: wake", "freeze: F", "W(flags), frozen", "freeze: R(nx)",
	"freeze: R(x)", "freeze: drop tokens", "freeze: wait for a token", "freeze: wait", "freeze: W(cx)", "raw recv", "end",
}

type consumerConn struct {
	tail, kr, cx   uint8
	head, nx       uint8 // as loaded last
	r, k           uint8 // the transition
	old            uint8
	base, size     uint8
	n              uint8 // bytes of the step
	got            uint8
	arms           uint8
	answered, room uint8
	last           bool // the end was seen: this is the look after it
	ended          bool
	clean          bool
	slotted        bool
	flags          uint8
}

type consumerState struct {
	pc     consumerPlace
	i      uint8
	dead   bool
	asked  bool // recall or freeze
	frozen bool
	raw    bool
	after  bool // settles after it has read
	found  bool // a look before the sleep found something
	sleeps uint8
	conn   [connections]consumerConn
}

func (c *consumerState) append(b []byte, s *state) []byte {
	b = append(b, byte(c.pc), c.i, bits(c.dead, c.asked, c.frozen, c.raw, c.after, c.found), c.sleeps)
	for i := range s.conns {
		c := &c.conn[i]
		b = append(b, c.tail, c.kr, c.cx, c.head, c.nx, c.r, c.k, c.old, c.base, c.size, c.n, c.got, c.arms, c.answered, c.room,
			bits(c.last, c.ended, c.clean, c.slotted), c.flags)
	}
	return b
}

func (s *state) consumerAt() string { return consumerNames[s.c.pc] }

func (s *state) consumerCan() bool {
	if s.c.dead {
		return false
	}
	k := &s.kernel[s.c.i]
	switch s.c.pc {
	case cEnd:
		return false
	case cPeek, cRaw, cFrozenToken:
		return k.readable()
	case cFrozenWait: // looks now and then: nothing need come by the kernel
		return k.ended() || uint8(s.newest(consumer, word(s.c.i)*producerWords+nx)) > s.c.conn[s.c.i].cx
	case cWait:
		return k.readable() && (s.mode != edgeWait || k.edge)
	case cSlotWait:
		for i := range s.conns {
			if !s.c.conn[i].ended && s.kernel[i].readable() {
				return true
			}
		}
		return false
	default:
		return true
	}
}

func (s *state) consumerAlone() bool {
	switch s.c.pc {
	case cPass, cTail, cSettleArm, cArmSlot, cSleep, cAwake, cFrozenPass, cRecall, cFreeze:
		return true
	default:
		return false
	}
}

// data gives bytes to the application.
func (s *state) data(got []uint8) {
	c := &s.c.conn[s.c.i]
	for _, v := range got {
		if v == token {
			s.fail("a token is delivered as data")
			return
		}
		if v != c.got+1 {
			s.fail("byte %d is delivered after byte %d", v, c.got)
			return
		}
		c.got++
	}
}

// tokens throws bytes away.
func (s *state) tokens(got []uint8) {
	for _, v := range got {
		if v != token {
			s.fail("byte %d is thrown away as a token", v)
		}
	}
}

// amount is how much of n bytes a read asks for.
func (s *state) amount(n uint8) uint8 {
	if n > 1 && s.chunks && s.choose(2) == 1 {
		return 1
	}
	return n
}

func (s *state) consumerStep() {
	p := &s.c
	c, k := &p.conn[p.i], &s.kernel[p.i]
	store := func(w word, v uint16, o order) { s.store(consumer, word(p.i)*consumerWords+w, v, o) }
	load := func(w word, o order) uint16 { return s.load(consumer, word(p.i)*producerWords+w, o) }
	transition := func() {
		v := load(x0+word(c.cx%2), relaxed)
		c.r, c.k = uint8(v>>8), uint8(v)
	}
	look := func() { // what comes after R(head) and R(nx)
		switch {
		case c.nx > c.cx:
			p.pc = cX
		case c.head != c.tail:
			p.pc = cBase
			if s.mutation == baseFirst {
				p.pc = cTail
				s.copyOut(c)
			}
		default:
			s.empty()
		}
	}
	switch p.pc {
	case cCall:
		if (s.recall || s.freeze) && !p.asked && s.choose(2) == 1 {
			p.asked = true
			p.pc = cRecall
			return
		}
		p.after = false
		p.pc = cKernelNx
		if c.cx%2 == 1 {
			p.pc = cHead
			if s.mutation == baseFirst {
				p.pc = cBase
			}
		}

	// A kernel extent: R(nx); to k, or SIOCINQ, R(nx) again, and all of it is data.
	case cKernelNx:
		c.nx = uint8(load(nx, acquire))
		p.pc = cInq
		if c.nx > c.cx {
			p.pc = cKernelX
		}
	case cKernelX:
		transition()
		p.pc = cKernelRead
		if c.kr >= c.k {
			p.pc = cPass
		}
	case cKernelRead:
		got := s.receive(k, int(s.amount(c.k-c.kr)))
		c.kr += uint8(len(got))
		s.data(got)
		s.read(len(got))
	case cPass:
		c.cx++
		store(cx, uint16(c.cx), release)
		p.pc = cKernelNx
		if c.cx%2 == 1 {
			p.pc = cHead
			if s.mutation == baseFirst {
				p.pc = cBase
			}
		}
	case cInq:
		s.observe(consumer, &k.arrived)
		c.n = uint8(len(k.queue))
		p.pc = cInqNx
		if s.mutation == noSecondLook {
			p.pc = cInqRead
		}
	case cInqNx:
		c.nx = uint8(load(nx, acquire))
		switch {
		case c.nx > c.cx:
			p.pc = cKernelX
		case c.n > 0:
			p.pc = cInqRead
		default:
			s.none()
		}
	case cInqRead:
		got := s.receive(k, int(s.amount(c.n)))
		c.kr += uint8(len(got))
		s.data(got)
		s.read(len(got))

	// A ring extent: R(head), R(nx), R(x), R(base), R(order), copy, W(tail).
	case cHead:
		c.head = uint8(load(head, s.ordered(acquire, headLoadRelaxed)))
		p.pc = cNx
	case cNx:
		c.nx = uint8(load(nx, acquire))
		look()
	case cX:
		transition()
		switch {
		case min(c.head, c.r) != c.tail:
			c.head = min(c.head, c.r)
			p.pc = cBase
			if s.mutation == baseFirst {
				p.pc = cTail
				s.copyOut(c)
			}
		case c.r == c.tail || s.mutation == passUnread:
			p.pc = cDrop
		default:
			p.pc = cHead
			if s.mutation == baseFirst {
				p.pc = cBase
			}
		}
	case cBase:
		c.base = uint8(load(base, relaxed))
		p.pc = cSize
	case cSize:
		c.size = uint8(load(size, relaxed))
		if s.mutation == baseFirst {
			p.pc = cHead
			return
		}
		s.copyOut(c)
		p.pc = cTail
	case cTail:
		c.tail += c.n
		store(tail, uint16(c.tail), s.ordered(release, tailRelaxed))
		if s.blocks {
			p.pc = cRoomFence
		} else {
			s.read(1)
		}
	case cRoomFence:
		if s.mutation != noRoomFence {
			s.fence(consumer)
		}
		p.pc = cWant
	case cWant:
		w := uint8(load(want, relaxed))
		// Half a ring is free: the consumer has seen no more than head.
		if w != c.answered && 2*(c.head-c.tail) <= c.size {
			c.answered, p.pc = w, cRoom
		} else {
			s.read(1)
		}
	case cRoom:
		c.room++
		store(room, uint16(c.room), release)
		p.pc = cWake
	case cWake:
		s.p.woken = true
		s.read(1)
	case cDrop:
		if s.mutation == passEarly {
			p.pc = cPass
			return
		}
		if c.kr < c.k {
			got := s.receive(k, int(c.k-c.kr))
			c.kr += uint8(len(got))
			s.tokens(got)
		}
		if c.kr < c.k {
			s.none()
		} else {
			p.pc = cPass
		}

	// Settle: R(ksent), W(arm), F, R(head), R(nx), take.
	case cSettleCount:
		c.old = uint8(load(ksent, s.ordered(acquire, countLoadRelaxed)))
		switch p.pc = cSettleArm; {
		case s.mutation == takeFirst:
			p.pc = cTake
		case c.old > c.kr+1 && s.mutation != leaveAll:
			p.pc = cSettleLook
		}
	case cSettleLook:
		c.nx = uint8(load(nx, acquire))
		if p.pc = cSettleFew; c.nx > c.cx && s.mutation != fewData {
			s.there()
		}
	case cSettleFew: // one stays
		got := s.receive(k, int(c.old-1-c.kr))
		c.kr += uint8(len(got))
		s.tokens(got)
		if p.pc = cSettleArm; c.kr < c.old-1 && s.mutation != armOnTheWay {
			s.none() // one is on its way, and wakes
		}
	case cSettleArm:
		if c.arms == 0 || s.mutation != sameArm {
			c.arms++
		}
		store(arm, uint16(c.arms)<<2|self, relaxed)
		p.pc = cSettleFence
	case cSettleFence:
		if s.mutation != noConsumerFence {
			s.fence(consumer)
		}
		p.pc = cSettleHead
	case cSettleHead:
		c.head = uint8(load(head, relaxed))
		p.pc = cSettleNx
	case cSettleNx:
		c.nx = uint8(load(nx, relaxed))
		switch {
		case c.head == c.tail && c.nx == c.cx && s.mutation == takeFirst:
			s.none()
		case c.head == c.tail && c.nx == c.cx:
			p.pc = cTake
			if s.mutation == countLate {
				c.old = uint8(s.newest(consumer, word(p.i)*producerWords+ksent))
			}
		default:
			s.there()
		}
	case cTake:
		n := int(c.old - min(c.kr, c.old))
		if s.mutation == takeAll {
			n = len(k.queue)
		}
		if n > 0 {
			got := s.receive(k, n)
			c.kr += uint8(len(got))
			s.tokens(got)
		}
		if s.mutation == takeFirst {
			p.pc = cSettleArm
			return
		}
		s.none()

	// Wait.
	case cArmSlot:
		c.slotted = true
		store(arm, slot, relaxed)
		s.none()
	case cPeek, cTry, cWait:
		s.observe(consumer, &k.arrived)
		if p.pc == cWait {
			k.edge = false
		}
		switch {
		case len(k.queue) == 0 && k.ended() && (p.pc != cWait):
			s.end()
		case p.pc == cTry:
			s.idle()
		default:
			p.pc = cCall
		}
	case cSlotCount:
		c.old = uint8(load(ksent, acquire))
		s.each(cSlotCount, cSleep)
	case cSleep:
		if p.sleeps == 0 || s.mutation != sameSleep {
			p.sleeps++
		}
		s.store(consumer, sleeps, uint16(p.sleeps), relaxed)
		p.found = false
		p.pc = cSleepFence
	case cSleepFence:
		if s.mutation != noSleepFence {
			s.fence(consumer)
		}
		s.first(cLookHead)
	case cLookHead:
		// Of an end in a kernel extent the ring is for later.
		p.found = p.found || c.cx%2 == 1 && uint8(load(head, relaxed)) != c.tail
		p.pc = cLookNx
	case cLookNx:
		// A transition that is known waits for the kernel's bytes, which wake up.
		p.found = p.found || uint8(load(nx, relaxed)) != c.nx
		if s.each(cLookHead, cSlotTake); p.pc == cSlotTake && p.found {
			p.pc = cAwake
		}
	case cSlotTake:
		if s.mutation == sleepCountLate {
			c.old = uint8(s.newest(consumer, word(p.i)*producerWords+ksent))
		}
		if c.cx%2 == 1 && c.nx == c.cx && c.old > c.kr {
			got := s.receive(k, int(c.old-c.kr))
			c.kr += uint8(len(got))
			s.tokens(got)
		}
		s.each(cSlotTake, cSlotWait)
	case cSlotWait:
		for i := range s.conns {
			if s.kernel[i].readable() {
				s.observe(consumer, &s.kernel[i].arrived)
			}
		}
		p.pc = cAwake
	case cAwake:
		s.store(consumer, sleeps, 0, relaxed)
		s.first(cCall)

	// Recall and freeze.
	case cRecall:
		store(flags, recalled, release)
		p.pc = cCall
		if s.freeze {
			p.pc = cFreezeFence
		}
		if s.blocks && s.mutation != recallSilent {
			p.pc = cRecallRoom
		}
	case cRecallRoom:
		c.room++
		store(room, uint16(c.room), release)
		p.pc = cRecallWake
	case cRecallWake:
		s.p.woken = true
		p.pc = cCall
		if s.freeze {
			p.pc = cFreezeFence
		}
	case cFreezeFence:
		if s.mutation != noFreezeFence {
			s.fence(consumer)
		}
		p.pc = cFrozenNx
	case cFrozenNx:
		c.nx = uint8(load(nx, acquire))
		switch {
		case c.nx > c.cx:
			p.pc = cFrozenX
		case c.cx%2 == 0: // nothing but data in the kernel from here on
			p.raw, p.pc = true, cRaw
		case !p.frozen:
			p.pc = cFreeze
		default:
			p.pc = cFrozenWait
		}
	case cFreeze:
		p.frozen = true
		store(flags, recalled|frozen, release)
		p.pc = cFrozenNx
	case cFrozenX:
		transition()
		p.pc = cFrozenDrop
		if c.cx%2 == 0 && c.kr < c.k || c.cx%2 == 1 && c.r != c.tail {
			// Data lie before tokens, or were spilled after the ring's bytes: they are read as ever.
			p.pc = cCall
		}
	case cFrozenDrop:
		if c.kr < c.k {
			got := s.receive(k, int(c.k-c.kr))
			c.kr += uint8(len(got))
			s.tokens(got)
		}
		p.pc = cFrozenPass
		if c.kr < c.k {
			p.pc = cFrozenToken
		}
	case cFrozenToken:
		s.observe(consumer, &k.arrived)
		if p.pc = cFrozenDrop; len(k.queue) == 0 {
			p.pc = cCall
		}
	case cFrozenWait:
		p.pc = cFrozenNx
		if c.nx = uint8(load(nx, acquire)); c.nx == c.cx && k.ended() {
			s.observe(consumer, &k.arrived)
			if uint8(s.newest(consumer, word(p.i)*producerWords+nx)) == c.cx {
				p.pc = cCall // the end: nobody takes anything back
			}
		}
	case cFrozenPass:
		c.cx++
		store(cx, uint16(c.cx), release)
		p.pc = cFrozenNx
	case cRaw:
		got := s.receive(k, 1)
		s.data(got)
		if len(got) == 0 {
			c.last = true
			s.end()
		}

	case cEnd: // no step: see consumerCan
	}
}

// copyOut copies what the step reads from the ring.
func (s *state) copyOut(c *consumerConn) {
	from := &s.p.conn[s.c.i]
	c.n = s.amount(c.head - c.tail)
	at := s.mark(consumer, word(s.c.i)*consumerWords+copied)
	if c.size == 0 {
		s.fail("the ring has no size")
		return
	}
	for i := range c.n {
		m := &from.memory[(c.tail+i-c.base)%c.size]
		if m.at > s.memory[producer].seen[word(s.c.i)*producerWords+cells] {
			s.fail("a byte of the ring is read while it is stored")
			return
		}
		m.read = at
		s.data([]uint8{m.value})
	}
}

// empty: the ring is, and no transition is known.
func (s *state) empty() {
	if s.mode == slotWait {
		if s.c.conn[s.c.i].slotted {
			s.none()
		} else {
			s.c.pc = cArmSlot
		}
		return
	}
	s.c.pc = cSettleCount
}

// read ends a read of n bytes.
func (s *state) read(n int) {
	p := &s.c
	c := &p.conn[p.i]
	if n == 0 {
		s.none()
		return
	}
	c.last = false
	p.pc = cCall
	if s.mode == levelWait {
		p.pc = cWait
		if c.cx%2 == 1 && c.head == c.tail { // leaves an empty ring
			p.after, p.pc = true, cSettleCount
			if c.nx > c.cx {
				p.pc = cWait
			}
		}
	}
}

// there: settle found something.
func (s *state) there() {
	if s.c.pc = cCall; s.c.after {
		s.c.pc = cWait
	}
}

// none ends a read of nothing.
func (s *state) none() {
	p := &s.c
	switch {
	case p.after:
		p.pc = cWait
	case s.mode == blockingRead:
		p.pc = cPeek
	default:
		p.pc = cTry
	}
}

// idle goes on to wait after a read of nothing.
func (s *state) idle() {
	if s.mode == slotWait {
		if s.each(cCall, cSlotCount); s.c.pc == cSlotCount {
			s.first(cSlotCount)
		}
		return
	}
	s.c.pc = cWait
}

// first begins with the first connection that has not ended.
func (s *state) first(pc consumerPlace) {
	for i := range s.conns {
		if !s.c.conn[i].ended {
			s.c.i, s.c.pc = uint8(i), pc
			return
		}
	}
	s.c.pc = cEnd
}

// each goes on with the next connection at again, after the last one with then.
func (s *state) each(again, then consumerPlace) {
	for i := int(s.c.i) + 1; i < s.conns; i++ {
		if !s.c.conn[i].ended {
			s.c.i, s.c.pc = uint8(i), again
			return
		}
	}
	s.first(then)
}

// end: recv() said that there is no more. The ring is looked at once more.
func (s *state) end() {
	p := &s.c
	c, k := &p.conn[p.i], &s.kernel[p.i]
	if !c.last && s.mutation != noLookAtEnd {
		c.last = true
		p.pc = cCall
		return
	}
	c.ended = true
	// A reset is an end if all that was sent has come, and it was tokens that the peer left unread.
	count := uint8(s.newest(consumer, word(p.i)*producerWords+ksent))
	inRing := c.cx%2 == 1 && c.nx == c.cx
	c.clean = k.fin || inRing || c.kr >= count || s.mutation == resetIsEnd
	if p.raw {
		c.clean = k.fin
	}
	if c.clean && c.got < s.p.conn[p.i].returned {
		s.fail("the end is delivered after %d bytes of %d", c.got, s.p.conn[p.i].returned)
	}
	if s.mode == slotWait {
		s.idle()
		return
	}
	p.pc = cEnd
}

func (s *state) killConsumer() {
	s.c.dead = true
	for i := range s.conns {
		s.kernel[i].closed = true
	}
}

// quiet is called where nobody can go on.
func (s *state) quiet() {
	if !s.p.dead && s.p.pc != pEnd {
		s.fail("the producer waits for ever")
	}
	if s.c.dead {
		return
	}
	for i := range s.conns {
		c, from := &s.c.conn[i], &s.p.conn[i]
		switch {
		case s.p.dead && !c.ended:
			s.fail("the consumer waits for ever for a producer that is dead")
		case s.p.dead: // a prefix, by data()
		case !from.stays && !c.ended:
			s.fail("the consumer waits for ever, %d bytes of %d read", c.got, from.sent)
		case c.got != from.sent:
			s.fail("the consumer sleeps, %d bytes of %d read", c.got, from.sent)
		case !from.stays && !c.clean:
			s.fail("the end is not delivered as an end")
		}
	}
}
