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
