package loop

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	// placeEvery is how many reads of an application's bytes pass between looks at where the application runs.
	// placeLooks is how many looks make a verdict.
	placeEvery = 32
	placeLooks = 64
	// placeOthers is how many of the looks must be at another flow than the previous look. The program of a single flow
	// waits for the answer, so the processor on which the shard is woken is free.
	placeOthers = placeLooks / 2
	// placeLead is by how many looks one processor must lead all others together: three in four looks are then its own.
	placeLead = placeLooks / 2
	// placeWindow is the longest time for a verdict: a shard with fewer reads holds up no application.
	placeWindow = 250 * time.Millisecond
	// placeSmall is the mean size of reads from which on the work is bulk. Then it is better to stay on the processor
	// whose caches have the bytes.
	placeSmall = 8 << 10
)

// placer keeps a busy shard off the processor on which its applications run, if there is another. The kernel wakes a
// shard on the processor of the program that has sent it something, expecting that program to sleep soon; on a machine
// that is mostly busy it looks for no idle one. With many connections the program does not sleep: for each message the
// shard interrupts it, or waits until it is done, while the other processor idles. On another processor the shard finds
// in one turn what the program has sent meanwhile.
//
//	anywhere ─► busy with small messages of many flows, three in four from one processor ─► off that one
//	   ▲                                                                                        │
//	   └───────────────────── otherwise, or 10 ms without work ◄────────────────────────────────┘
//
// Only the thread of its shard may use it.
type placer struct {
	where func(fd int) (cpu int, ok bool) // the processor of the last sender to an app leg
	get   func(*unix.CPUSet) error        // reads the affinity of the calling thread
	set   func(*unix.CPUSet) error

	began     time.Time // start of the window
	reads     int
	bytes     int
	flow      int // the descriptor of the last look
	others    int // looks at another descriptor than the previous look
	candidate int // majority vote: the leading processor, and by how many looks
	lead      int

	placed  bool // kept off avoided; allowed is the affinity before
	avoided int
	allowed unix.CPUSet // affinity before

	moves uint64 // changes of place, for the tests
}

// newPlacer returns a placer for whichever thread calls its methods.
func newPlacer() placer {
	return placer{
		where: rawIncomingCPU,
		get:   func(set *unix.CPUSet) error { return unix.SchedGetaffinity(0, set) },
		set:   func(set *unix.CPUSet) error { return unix.SchedSetaffinity(0, set) },
	}
}

// read counts n bytes read from an app leg in a turn that began at now.
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

// expire lifts a restriction that no verdict has confirmed for long, as when the applications only receive. Call it in
// each turn.
func (p *placer) expire(now time.Time) {
	if p.placed && now.Sub(p.began) > 2*placeWindow {
		p.release()
	}
}

// release restores the thread's affinity.
func (p *placer) release() {
	if p.placed {
		p.placed = false
		p.moves++
		_ = p.set(&p.allowed) // fails if the processors are gone; then the kernel chooses
	}
}

// forget is called for a thread that has none of the restrictions of the one before it.
func (p *placer) forget() { p.placed = false }
