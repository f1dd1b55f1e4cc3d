package testnet

import (
	"fmt"
	"sync"
	"time"
)

// standstillLeast is the shortest time without a turn of this process that a failure report mentions.
const standstillLeast = 500 * time.Millisecond

// standstills records when the machine, or this process, stood still. A timeout of a test at such a time is not the
// fault of what it tests.
type standstills struct {
	stop chan struct{}
	done sync.WaitGroup
	seen []string // owned by watch's goroutine
}

func watchStandstills() *standstills {
	s := &standstills{stop: make(chan struct{})}
	s.done.Go(s.watch)
	return s
}

func (s *standstills) watch() {
	const turn = 50 * time.Millisecond
	ticker := time.NewTicker(turn)
	defer ticker.Stop()
	for last := time.Now(); ; {
		select {
		case <-s.stop:
			return
		case <-ticker.C:
		}
		now := time.Now()
		s.turns(last, now)
		last = now
	}
}

// turns records the time between two turns, if it is long.
func (s *standstills) turns(last, now time.Time) {
	if gap := now.Sub(last); gap >= standstillLeast {
		s.seen = append(s.seen, fmt.Sprintf("%v up to %s", gap.Round(time.Millisecond), now.UTC().Format(time.StampMilli)))
	}
}

// end stops the watch and returns what it has seen.
func (s *standstills) end() []string {
	close(s.stop)
	s.done.Wait()
	return s.seen
}
