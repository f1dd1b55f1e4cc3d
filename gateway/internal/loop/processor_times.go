package loop

import (
	"maps"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Times is the processor time of the process: of each shard, whose thread is its own, with
// those that had its number before, and of the rest. The zero value is ready to use.
type Times struct {
	mu     sync.Mutex // guards everything below
	shards []*Shard
	ended  map[string]time.Duration // of shards that there were
	rest   time.Duration            // that was told last: the clocks are not read at one instant
}

// Begin counts shards from now on.
func (t *Times) Begin(shards []*Shard) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shards = append(t.shards, shards...)
}

// End counts no shards any more: those that it counted have ended.
func (t *Times) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended, t.shards = t.usedLocked(), nil
}

// Used is what the process has used so far, by what of it did.
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

// usedLocked is what shards have used so far.
func (t *Times) usedLocked() map[string]time.Duration {
	used := map[string]time.Duration{}
	maps.Copy(used, t.ended)
	for _, s := range t.shards {
		used["shard"+strconv.Itoa(s.ID())] += s.processorTime()
	}
	return used
}
