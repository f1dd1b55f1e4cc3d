package loop

import (
	"time"

	"golang.org/x/sys/unix"
)

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
