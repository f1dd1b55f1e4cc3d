package loop

import (
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ProcessorTimes is what the process has used so far: each shard, whose thread is its own,
// and the rest.
func ProcessorTimes(shards []*Shard) map[string]time.Duration {
	used := map[string]time.Duration{}
	var all unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &all); err != nil {
		return used
	}
	rest := time.Duration(all.Utime.Nano() + all.Stime.Nano())
	for _, s := range shards {
		d := s.processorTime()
		used["shard"+strconv.Itoa(s.ID())] = d
		rest -= d
	}
	used["rest"] = max(0, rest) // the clocks are not read at one instant
	return used
}
