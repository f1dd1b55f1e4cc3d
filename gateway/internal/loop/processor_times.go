package loop

import (
	"maps"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Times is the processor time of the process: of each shard, including earlier shards with its number, and of the rest.
// The zero value is ready to use.
type Times struct {
	mu     sync.Mutex // guards everything below
	shards []*Shard
	ended  map[string]time.Duration // of earlier shards, by name
	rest   time.Duration            // as last reported; keeps it monotonic, since the clocks are read one after another
}

// Begin starts counting these shards.
func (t *Times) Begin(shards []*Shard) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shards = append(t.shards, shards...)
}

// End stops counting the current shards, all of which have ended.
func (t *Times) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended, t.shards = t.usedLocked(), nil
}

// Used returns the processor time used so far, by shard and for the rest.
func (t *Times) Used() map[string]time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &all); err != nil {
		return map[string]time.Duration{}
	}
	used := t.usedLocked()
	rest := time.Duration(all.Utime.Nano() + all.Stime.Nano())
	for _, d := range used {
		rest -= d
	}
	t.rest = max(t.rest, rest)
	used["rest"] = t.rest
	return used
}

// usedLocked returns what the shards have used so far.
func (t *Times) usedLocked() map[string]time.Duration {
	used := map[string]time.Duration{}
	maps.Copy(used, t.ended)
	for _, s := range t.shards {
		used["shard"+strconv.Itoa(s.ID())] += s.processorTime()
	}
	return used
}

// processorTime returns how much processor time the shard's threads have used so far.
func (s *Shard) processorTime() time.Duration {
	tid := s.tid.Load()
	if tid == 0 {
		return time.Duration(s.spent.Load())
	}
	var t unix.Timespec
	if err := unix.ClockGettime(threadClock(tid), &t); err != nil {
		return time.Duration(s.spent.Load()) // the thread has ended meanwhile
	}
	return time.Duration(s.before.Load() + t.Nano())
}

// threadClock returns the clock of a thread's processor time (clock_getcpuclockid(3), MAKE_THREAD_CPUCLOCK of the
// kernel).
func threadClock(tid int32) int32 {
	const perThread, scheduled = 4, 2
	return ^tid<<3 | perThread | scheduled
}
