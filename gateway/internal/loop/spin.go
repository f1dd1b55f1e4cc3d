package loop

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
)

const (
	// spinLimit is how long a shard that has run out of work looks for more before it
	// sleeps: for longer it would take the processor from the applications whose answer
	// is waited for.
	spinLimit = 20 * time.Microsecond
	// spinPeeks is how often the devices are looked at between two system calls.
	spinPeeks = 16
	// spinShort is the multiple of the limit up to which a sleep was short: work
	// comes so soon that spinning for it is no waste. Every spinEagerTurns short
	// sleeps the next spin lasts spinEager times the limit: two loops that both
	// sleep make each other wait for longer than either spins, and only one that
	// spins for as long as the other takes to wake up ends that.
	spinShort      = 10
	spinEagerTurns = 8
	spinEager      = 5
	// spinFruitless is after how many long sleeps in a row spinning rests, and
	// spinRest for how long.
	spinFruitless = 32
	spinRest      = time.Second
	// spinYieldLimit is how long another thread may keep the processor when it is
	// offered: a longer yield means that another thread needs the processor. A
	// single one may be noise, so each costs as much as spinYieldWorth spins that
	// found something.
	spinYieldLimit = 100 * time.Microsecond
	spinYieldWorth = 4
)

// spinner looks for more work before a shard sleeps. To sleep costs the peer a
// doorbell, and the sender of the next bytes a wake-up: on a virtual machine 20
// µs each. The processor is offered to others all the time, since the work waited
// for is often made on it.
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

// wanted tells whether to spin before sleeping; of two sleeps with no work
// between them only the first is worth it.
func (sp *spinner) wanted(now time.Time) bool {
	if !sp.fresh {
		return false
	}
	sp.fresh = false
	return !now.Before(sp.restUntil)
}

// woke keeps the score after a sleep that began when a spin had found nothing.
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

// peek tells whether a device has work; those that cannot say without a system
// call have descriptors instead.
func (sp *spinner) peek() bool {
	for _, p := range sp.peekers {
		if p.Ready() {
			return true
		}
	}
	return false
}

// spin returns found if there is work or a descriptor event, of which there are n.
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
