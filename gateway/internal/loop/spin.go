package loop

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
)

const (
	// spinLimit is how long a shard that has run out of work looks for more before it sleeps. Longer would take the
	// processor from the applications whose answer it waits for.
	spinLimit = 20 * time.Microsecond
	// spinPeeks is how often the devices are polled between two system calls.
	spinPeeks = 16
	// spinShort is the multiple of the limit up to which a sleep counts as short: work comes so soon that spinning for
	// it is no waste. Every spinEagerTurns short sleeps, the next spin lasts spinEager times the limit. When two loops
	// both sleep, each waits longer for the other than either spins; only a loop that spins as long as the other takes
	// to wake up ends that.
	spinShort      = 10
	spinEagerTurns = 8
	spinEager      = 5
	// spinFruitless is the number of long sleeps in a row after which spinning pauses, spinRest for how long.
	spinFruitless = 32
	spinRest      = time.Second
	// spinYieldLimit is how long another thread may keep the processor when the shard yields it. If a yield takes
	// longer, another thread needs the processor. A single one may be noise, so each counts as much against spinning as
	// spinYieldWorth successful spins count for it.
	spinYieldLimit = 100 * time.Microsecond
	spinYieldWorth = 4
)

// spinner looks for more work before a shard sleeps. A sleep costs the peer a doorbell, and the sender of the next
// bytes a wake-up: 20 µs each on a virtual machine. The spinner keeps yielding the processor, since the awaited work is
// often produced on it.
//
//	working ─► out of work ─► spinning ─┬─► found: working
//	                                    └─► limit: asleep ─┬─► short: working
//	                                                       └─► long (spinFruitless in a row): resting for spinRest
type spinner struct {
	limit     time.Duration
	peekers   []verbs.Peeker
	fresh     bool // work was found since the last spin
	fruitless int
	short     int
	restUntil time.Time
}

// wanted reports whether to spin before sleeping. If there is no work between two sleeps, only the first is worth a
// spin.
func (sp *spinner) wanted(now time.Time) bool {
	if !sp.fresh {
		return false
	}
	sp.fresh = false
	return !now.Before(sp.restUntil)
}

// woke scores a sleep that followed a spin in vain; slept is when it began.
func (sp *spinner) woke(now, slept time.Time) {
	if now.Sub(slept) <= spinShort*sp.limit {
		sp.short++
		sp.fruitless = 0
		return
	}
	sp.blame(1, now)
}

func (sp *spinner) blame(n int, now time.Time) {
	if sp.fruitless += n; sp.fruitless >= spinFruitless {
		sp.fruitless = 0
		sp.restUntil = now.Add(spinRest)
	}
}

// peek reports whether a device has work. Devices that cannot tell without a system call have descriptors instead.
func (sp *spinner) peek() bool {
	for _, p := range sp.peekers {
		if p.Ready() {
			return true
		}
	}
	return false
}

// spin looks for work. found reports whether there is any; n is the number of descriptor events.
func (s *Shard) spin(events []unix.EpollEvent) (n int, found bool) {
	sp := &s.spinner
	limit := sp.limit
	if sp.short >= spinEagerTurns {
		sp.short = 0
		limit *= spinEager
	}
	start := time.Now()
	for now := start; now.Sub(start) < limit; {
		for range spinPeeks {
			if sp.peek() || s.hasPost.Load() {
				sp.hit()
				return 0, true
			}
		}
		if n := s.poll(events, 0, true); n > 0 {
			sp.hit()
			return n, true
		}
		rawYield()
		before := now
		now = time.Now()
		if now.Sub(before) > spinYieldLimit {
			sp.blame(spinYieldWorth, now)
			return 0, false
		}
	}
	return 0, false
}

func (sp *spinner) hit() {
	sp.fruitless = max(0, sp.fruitless-1)
}

// Streamer is implemented by drivers that know whether they move a stream.
type Streamer interface {
	// Streams reports whether much has moved since the last call.
	Streams() bool
}

// napFor is how long a shard that has run out of work in a stream sleeps before it looks again. It arms nothing for
// that: what comes meanwhile wakes no thread, and is handled at once. The kernel's timers add about 50 µs.
const napFor = 30 * time.Microsecond

// streams asks each driver, since each counts from the last call on.
func (s *Shard) streams() (yes bool) {
	for _, d := range s.drivers {
		if st, ok := d.(Streamer); ok {
			yes = st.Streams() || yes
		}
	}
	return yes
}
