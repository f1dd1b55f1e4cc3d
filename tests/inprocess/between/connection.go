package between

import (
	mrand "math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
)

// flight is something on its way from side from to the other.
type flight struct {
	due  time.Time
	from int
	b    []byte // ring bytes, unless set is given
	set  func()
}

// connection is a promoted connection. run moves its words and ring bytes.
type connection struct {
	h    *Hosts
	size uint64
	rng  *mrand.Rand
	side [2]*side

	queue           [2][]flight  // in order
	last            [2]time.Time // when the last of them arrives, or arrived
	taken           [2]uint64    // ring bytes of a side that are on their way or have arrived
	tail, told      [2]uint64    // the last tail that was seen, and the last that was sent on
	flags, nx       [2]uint32
	over            [2]bool
	gone            [2]time.Time // when the gateway of a side will report the loss; zero: never
	said            [2]bool
	lossAt          time.Time
	recallAt        time.Time
	gateway         int // the side whose gateway dies, or recalls
	carrier, broken bool
	toldAt          [2]time.Time // so that a program that reads bit by bit does not put it off
	rests           bool         // nothing happens
	arms            uint32
}

func (k *connection) delay() time.Duration {
	if k.h.faults.Delay <= 0 || k.rng.IntN(3) == 0 {
		return 0
	}
	return time.Duration(k.rng.Int64N(int64(k.h.faults.Delay)))
}

// put queues something for the other side, to arrive after everything queued before.
func (k *connection) put(f flight) {
	f.due = time.Now().Add(k.delay())
	last := &k.last[f.from]
	if len(f.b) >= slowFrom {
		*last = last.Add(k.h.faults.Slow)
	}
	if last.After(f.due) {
		f.due = *last
	}
	*last = f.due
	k.queue[f.from] = append(k.queue[f.from], f)
}

func (k *connection) ring(s *side) {
	a := s.own.w32(inprocess.EndArm).Load()
	if a == 0 || a == s.rung || s.socket() < 0 {
		return
	}
	s.rung = a
	_ = unix.SetsockoptInt(s.socket(), unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1)
}

func (k *connection) wake(s *side) {
	if w := s.own.w32(inprocess.EndWant).Load(); w != s.want {
		s.want = w
		s.mirror.w32(inprocess.EndRoom).Add(1)
		s.mirror.wake(inprocess.EndRoom)
	}
}

func (k *connection) flag(s *side, f uint32) {
	s.flags |= f
	s.mirror.w32(inprocess.EndFlags).Store(s.flags)
	s.mirror.w32(inprocess.EndRoom).Add(1)
	s.mirror.wake(inprocess.EndRoom)
	if s.socket() >= 0 {
		s.rung = s.own.w32(inprocess.EndArm).Load()
		_ = unix.SetsockoptInt(s.socket(), unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1)
	}
}

// collect sends on what a side has written, and tells whether there was anything.
func (k *connection) collect(i int) bool {
	s, t, any := k.side[i], k.side[1-i], false
	if s.dead || k.broken {
		return false
	}
	if s.own.w32(inprocess.EndFlags).Load()&inprocess.Gone != 0 { // also set by a child that inherited the end
		s.closed.Store(true)
	}
	closed, ended := s.closed.Load(), s.ended // read before the last look at its words
	if f := s.own.w32(inprocess.EndFlags).Load(); f != k.flags[i] {
		pass := f & (inprocess.Attached | inprocess.Recall)
		if had := k.flags[i] & (inprocess.Attached | inprocess.Recall); pass != had {
			k.put(flight{from: i, set: func() { k.flag(t, pass) }})
		}
		if f&inprocess.Asks != 0 && k.flags[i]&inprocess.Asks == 0 { // the question crosses, the answer comes back
			k.put(flight{from: i, set: func() {
				nx, at, ks := t.opening()
				k.put(flight{from: 1 - i, set: func() {
					k.opened(s, nx, at, ks)
					k.flag(s, inprocess.Asks) // the answer
				}})
			}})
		}
		if f&inprocess.Asks == 0 && s.flags&inprocess.Asks != 0 { // it has seen the answer
			s.flags &^= inprocess.Asks
			s.mirror.w32(inprocess.EndFlags).Store(s.flags)
		}
		k.flags[i] = f
		any = true
	}
	if nx := s.own.w32(inprocess.EndNx).Load(); nx != k.nx[i] {
		k.nx[i] = nx
		if nx != 0 && k.rng.IntN(2) == 0 {
			nx, at, ks := s.opening()
			k.put(flight{from: i, set: func() { k.opened(t, nx, at, ks) }})
		}
		any = true
	}
	if tail := s.own.w64(inprocess.EndTail).Load(); tail != k.tail[i] {
		k.tail[i] = tail
		any = true
	}
	if tail := k.tail[i]; tail != k.told[i] && (k.rests || closed || ended || tail-k.told[i] >= k.size/8 || time.Since(k.toldAt[i]) > 100*time.Millisecond) {
		k.told[i], k.toldAt[i] = tail, time.Now()
		k.put(flight{from: i, set: func() {
			t.mirror.w64(inprocess.EndTail).Store(tail)
			k.wake(t)
		}})
		any = true
	}
	for head := s.own.w64(inprocess.EndHead).Load(); k.taken[i] != head; {
		n := min(head-k.taken[i], k.size/2-inprocess.Slack) // no whole pages, as if from a gateway
		if !k.h.faults.Whole {
			n = min(n, 1+k.rng.Uint64N(k.size/2))
			if k.rng.IntN(4) == 0 {
				n = 1 + k.rng.Uint64N(n)
			}
		}
		b := make([]byte, n)
		at := k.taken[i] & (k.size - 1)
		m := copy(b, s.own.b[inprocess.RingAt+at:inprocess.RingAt+k.size])
		copy(b[m:], s.own.b[inprocess.RingAt:])
		k.taken[i] += n
		k.put(flight{from: i, b: b})
		any = true
	}
	if (ended || closed) && !k.over[i] && !s.c.dead.Load() { // ENDED: of a process whose gateway is dead no gateway says where it is
		k.over[i] = true
		says := uint32(inprocess.Gone | inprocess.Left)
		if closed && !ended && k.flags[i]&inprocess.Reset == 0 { // the gateway need not deliver what is on its way
			k.queue[i] = slices.DeleteFunc(k.queue[i], func(f flight) bool { return f.b != nil })
		}
		if f := s.own.w32(inprocess.EndFlags).Load(); ended && (f&inprocess.Reset == 0 || f&inprocess.Whole != 0 && s.sent) {
			says = inprocess.Shut
		}
		nx, at, ks := s.opening()
		k.put(flight{from: i, set: func() { k.opened(t, nx, at, ks) }}) // once more: afterwards nothing is answered
		got := s.own.w64(inprocess.EndGot).Load()
		k.put(flight{from: i, set: func() {
			t.mirror.w64(inprocess.EndGot).Store(got)
			k.flag(t, says)
		}})
		if !ended { // another process that has the end hears no more
			k.flag(s, inprocess.Gone)
			s.dead = true
		}
		any = true
	}
	return any
}

// opening returns where a side is in the kernel's stream.
func (s *side) opening() (nx uint32, at, ksent uint64) {
	nx = s.own.w32(inprocess.EndNx).Load() // read before the words that it publishes
	return nx, s.own.w64(inprocess.EndTransitions + 8).Load(), s.own.w64(inprocess.EndKsent).Load()
}

func (k *connection) opened(to *side, nx uint32, at, ks uint64) {
	to.mirror.w64(inprocess.EndTransitions + 8).Store(at)
	to.mirror.w64(inprocess.EndKsent).Store(ks)
	to.mirror.w32(inprocess.EndNx).Store(nx)
	to.rung = 0
	k.ring(to)
}

// deliver delivers what side i has sent and is due.
func (k *connection) deliver(i int, t time.Time) bool {
	to, any := k.side[1-i], false
	for len(k.queue[i]) > 0 && !k.queue[i][0].due.After(t) {
		f := k.queue[i][0]
		k.queue[i] = k.queue[i][1:]
		if to.dead {
			continue
		}
		any = true
		if f.set != nil {
			f.set()
			continue
		}
		head := to.mirror.w64(inprocess.EndHead).Load()
		at := head & (k.size - 1)
		m := copy(to.mirror.b[inprocess.RingAt+at:inprocess.RingAt+k.size], f.b)
		copy(to.mirror.b[inprocess.RingAt:], f.b[m:])
		to.mirror.w64(inprocess.EndHead).Store(head + uint64(len(f.b)))
		k.h.Moved.Add(int64(len(f.b)))
		k.ring(to)
	}
	return any
}

func (k *connection) strike(t time.Time) {
	due := func(at time.Time) bool {
		return !at.IsZero() && t.After(at) && k.taken[0]+k.taken[1] >= k.h.faults.After
	}
	if due(k.lossAt) {
		k.lossAt = time.Time{}
		k.h.Struck.Add(1)
		if k.h.faults.Stops && k.rng.IntN(2) == 0 { // for so short a time that no gateway gives the other up
			time.Sleep(3 * time.Second)
			return
		}
		k.broken = true
		for i := range k.queue { // lose a suffix
			if n := len(k.queue[i]); n > 0 {
				k.queue[i] = k.queue[i][:k.rng.IntN(n+1)]
			}
			k.gone[i] = t.Add(time.Duration(k.rng.Int64N(int64(50 * time.Millisecond))))
		}
		if !k.carrier {
			s := k.side[k.gateway]
			s.dead = true
			k.gone[k.gateway] = time.Time{}
			if !k.h.faults.Stops {
				s.c.kill()
			}
		}
	}
	if due(k.recallAt) {
		k.recallAt = time.Time{}
		k.h.Struck.Add(1)
		k.flag(k.side[k.gateway], inprocess.Recall)
		if k.h.faults.Both || k.rng.IntN(2) == 0 {
			k.flag(k.side[1-k.gateway], inprocess.Recall)
		}
	}
	for i, s := range k.side {
		if s.c.dead.Load() && !s.dead { // because of another connection
			s.dead = true
			k.broken = true
			if k.gone[1-i].IsZero() {
				k.gone[1-i] = t.Add(time.Duration(k.rng.Int64N(int64(50 * time.Millisecond))))
			}
		}
		if !k.gone[i].IsZero() && t.After(k.gone[i]) && !k.said[i] && !s.dead {
			k.said[i] = true
			k.queue[1-i] = nil
			k.flag(s, inprocess.Gone)
		}
	}
}

// look takes up the socket of a side, and lets go of it once the side has ended, since holding it would withhold the
// FIN. It also finds out whether any process still has the side's memory.
func (k *connection) look(s *side) (any bool) {
	if s.sends == nil && s.left.Load() && !s.closed.Load() {
		if s.leftAt.IsZero() {
			s.leftAt = time.Now()
		}
		fd := s.socket()
		switch written := s.own.written(); {
		case written && time.Since(s.leftAt) > time.Second: // another process lives, and goes on by the kernel
			s.closed.Store(true)
		case written:
		case fd >= 0 && s.own.w32(inprocess.EndFlags).Load()&inprocess.Gone == 0:
			s.sends = make(chan bool, 1)
			s.came.Store(-1)
			k.h.all.Go(func() { s.sends <- k.h.linger(fd, true) })
		default:
			s.sends = make(chan bool, 1)
			s.sends <- false
		}
	}
	if s.sends != nil && !s.ended {
		select {
		case s.sent = <-s.sends:
			s.ended = true
			s.closed.Store(true)
			any = true
		default:
		}
	}
	if s.closed.Load() {
		if fd := s.came.Swap(-1); fd > 0 {
			k.h.all.Go(func() { k.h.linger(int(fd-1), false) })
			any = true
		}
		return any
	}
	if s.sends != nil {
		return any
	}
	if !s.rings && s.socket() >= 0 {
		s.rings = true
		_ = unix.SetsockoptInt(s.socket(), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, int(k.size)+inprocess.Spill) // as gateways do
		k.ring(s)
	}
	return any
}

// linger closes a socket once its FIN, if it has sent one, is acknowledged. Of a process that was killed it sends the FIN,
// if the socket has more to send and is not to be reset. It tells whether the peer has everything.
func (h *Hosts) linger(fd int, killed bool) bool {
	defer func() { _ = unix.Close(fd) }()
	for acked, since := uint64(0), time.Now(); ; {
		i, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		all := err == nil && i.Unacked == 0 && i.Notsent_bytes == 0 && i.State != unix.BPF_TCP_CLOSE
		if l, _ := unix.GetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER); killed && !all && *l != (unix.Linger{Onoff: 1}) {
			killed = false
			_ = unix.Shutdown(fd, unix.SHUT_WR)
			continue
		}
		if i.Bytes_acked != acked {
			acked, since = i.Bytes_acked, time.Now()
		}
		if unread, _ := unix.IoctlGetInt(fd, unix.TIOCINQ); unread > 256 && i.State == unix.BPF_TCP_FIN_WAIT1 && time.Since(since) > time.Second {
			return false
		}
		if err != nil || (i.State != unix.BPF_TCP_FIN_WAIT1 && i.State != unix.BPF_TCP_LAST_ACK && i.State != unix.BPF_TCP_CLOSING) {
			return all
		}
		select {
		case <-h.done:
			return all
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (k *connection) run() {
	defer k.close()
	f, now := k.h.faults, time.Now()
	within := func() time.Time { return now.Add(time.Duration(k.rng.Int64N(int64(f.Within) + 1))) }
	k.gateway = k.rng.IntN(2)
	switch p := k.rng.Float64(); {
	case p < f.Carrier:
		k.carrier, k.lossAt = true, within()
	case p < f.Carrier+f.Gateway:
		k.lossAt = within()
	case p < f.Carrier+f.Gateway+f.Recall:
		k.recallAt = within()
	}
	idle := 0
	for {
		select {
		case <-k.h.done:
			return
		default:
		}
		t := time.Now()
		any := false
		for i, s := range k.side {
			any = k.look(s) || any
			any = k.collect(i) || any
		}
		for i := range k.side {
			any = k.deliver(i, time.Now()) || any
		}
		k.strike(t)
		k.rests = false
		if any {
			idle = 0
			continue
		}
		if len(k.queue[0])+len(k.queue[1]) == 0 && k.side[0].closed.Load() && k.side[1].closed.Load() && (k.over[0] || k.side[0].dead || k.broken) && (k.over[1] || k.side[1].dead || k.broken) {
			return
		}
		if idle++; idle < 20 || len(k.queue[0])+len(k.queue[1]) > 0 {
			time.Sleep(50 * time.Microsecond)
			continue
		}
		if k.rests = k.told != k.tail; !k.rests {
			k.sleep()
		}
	}
}

// sleep arms both doorbells and waits for them, if nothing has come since. It counts doorbells that were not rung.
func (k *connection) sleep() {
	k.arms++
	var p []unix.PollFd
	for i, s := range k.side {
		kind := uint32(inprocess.ArmSelf)
		if s.mirror.w64(inprocess.EndHead).Load() != k.tail[i] { // what it reads later is to be told, too
			kind = inprocess.ArmRead
		}
		s.mirror.w32(inprocess.EndArm).Store(k.arms<<8 | kind)
		p = append(p, unix.PollFd{Fd: int32(s.bell), Events: unix.POLLIN})
	}
	if !(k.collect(0) || k.collect(1)) {
		n, _ := unix.Poll(p, 20)
		if n == 0 {
			for i := range k.side { // a ring may be missing
				s := k.side[i]
				head, nx := s.own.w64(inprocess.EndHead).Load(), s.own.w32(inprocess.EndNx).Load()
				if !s.dead && !k.broken && !s.left.Load() && (head != k.taken[i] || nx != k.nx[i]) && !k.rung(s) {
					k.h.Missed.Add(1)
				}
			}
		}
	}
	for _, s := range k.side {
		s.mirror.w32(inprocess.EndArm).Store(0)
		var b [8]byte
		_, _ = unix.Read(s.bell, b[:])
	}
}

// rung tells whether a doorbell rings: its writer may be about to, and have no processor.
func (k *connection) rung(s *side) bool {
	p := []unix.PollFd{{Fd: int32(s.bell), Events: unix.POLLIN}}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		closed := s.closed.Load() // read before the last look
		if n, _ := unix.Poll(p, 20); n == 1 || s.left.Load() {
			return true
		}
		select {
		case <-k.h.done:
			return true
		default:
		}
		if closed {
			return false
		}
	}
	return false
}

func (k *connection) close() {
	for _, s := range k.side {
		s.closed.Store(true)
		k.look(s)
		s.own.close()
		s.mirror.close()
		_ = unix.Close(s.bell)
	}
}
