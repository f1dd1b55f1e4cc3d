package loop

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	// placeEvery is after how many reads of an application's bytes a shard looks
	// where the application runs, and placeLooks how many looks make a verdict.
	placeEvery = 32
	placeLooks = 64
	// placeOthers is how many of the looks have to be at another flow than the look
	// before: the program of a single flow waits for the answer, and the processor
	// beside it is free when the shard is woken up there.
	placeOthers = placeLooks / 2
	// placeLead is by how many looks one processor has to be ahead of all others
	// together: three in four are its own.
	placeLead = placeLooks / 2
	// placeWindow is the longest time for a verdict: a shard with fewer reads
	// limits no application.
	placeWindow = 250 * time.Millisecond
	// placeSmall is the mean read, in bytes, from which on the work is bulk: then
	// a processor that has the bytes in its caches is worth more.
	placeSmall = 8 << 10
)

// placer keeps a busy shard off the processor that its applications run on, where
// there is another one. The kernel wakes a shard up on the processor of the program
// that has sent it something, since that one is about to sleep; on a machine that
// is mostly busy it looks for no idle one. With many connections the program does
// not sleep: each message makes the shard interrupt it, or wait until it is done,
// while the other processor idles. Off that processor the shard finds what the
// program has sent meanwhile, in one turn.
//
//	anywhere ─► busy with small messages of many flows, three in four from one processor ─► off that one
//	   ▲                                                                                        │
//	   └───────────────────── otherwise, or 10 ms without work ◄────────────────────────────────┘
//
// Only the thread of its shard uses it.
type placer struct {
	where func(fd int) (cpu int, ok bool) // the processor of the last sender on an app leg
	get   func(*unix.CPUSet) error        // affinity of the calling thread
	set   func(*unix.CPUSet) error

	began     time.Time // of the window
	reads     int
	bytes     int
	flow      int // the descriptor looked at last
	others    int // looks at another one than before
	candidate int // majority vote of the looks: the leading processor, and by how many
	lead      int

	placed  bool // off avoided, anywhere else in allowed
	avoided int
	allowed unix.CPUSet // before

	moves uint64 // changes of place, for the tests
}

// newPlacer returns one of the calling shard's thread, whichever that will be.
func newPlacer() placer {
	return placer{
		where: rawIncomingCPU,
		get:   func(set *unix.CPUSet) error { return unix.SchedGetaffinity(0, set) },
		set:   func(set *unix.CPUSet) error { return unix.SchedSetaffinity(0, set) },
	}
}

// read counts n bytes that were read from an app leg in a turn that began at now.
func (p *placer) read(fd, n int, now time.Time) {
	if p.reads == 0 {
		p.began = now
	}
	p.reads++
	p.bytes += n
	if p.reads%placeEvery != 0 {
		return
	}
	if cpu, ok := p.where(fd); ok {
		p.vote(cpu)
	}
	if fd != p.flow {
		p.flow = fd
		p.others++
	}
	if p.reads == placeEvery*placeLooks {
		p.decide(now)
		p.reads, p.bytes, p.others, p.lead = 0, 0, 0, 0
	}
}

func (p *placer) vote(cpu int) {
	switch {
	case p.lead == 0:
		p.candidate, p.lead = cpu, 1
	case p.candidate == cpu:
		p.lead++
	default:
		p.lead--
	}
}

func (p *placer) decide(now time.Time) {
	if p.others < placeOthers || p.lead < placeLead || now.Sub(p.began) > placeWindow || p.bytes >= p.reads*placeSmall {
		p.release()
		return
	}
	p.avoid(p.candidate)
}

// avoid keeps the thread off a processor, if it may use others.
func (p *placer) avoid(cpu int) {
	if p.placed && p.avoided == cpu {
		return
	}
	if !p.placed && p.get(&p.allowed) != nil {
		return
	}
	set := p.allowed
	set.Clear(cpu)
	if !p.allowed.IsSet(cpu) || set.Count() == 0 || p.set(&set) != nil {
		p.release()
		return
	}
	p.placed, p.avoided = true, cpu
	p.moves++
}

// expire ends a place that no verdict has confirmed for long: the applications only
// receive now. It is for each turn.
func (p *placer) expire(now time.Time) {
	if p.placed && now.Sub(p.began) > 2*placeWindow {
		p.release()
	}
}

// release lets the thread run where it might before.
func (p *placer) release() {
	if p.placed {
		p.placed = false
		p.moves++
		_ = p.set(&p.allowed) // the processors may be gone; the kernel sees to that
	}
}
