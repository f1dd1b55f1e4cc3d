package loop

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The processor time of a shard is that of its thread, and stays when the thread has ended.
func TestProcessorTime(t *testing.T) {
	s, err := New(0, slog.New(slog.DiscardHandler), Options{})
	require.NoError(t, err)
	require.Zero(t, s.processorTime())
	s.Start()
	const work = 50 * time.Millisecond
	var spent time.Duration
	s.Call(func() {
		for spent < work {
			var now unix.Timespec
			require.NoError(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now))
			spent = time.Duration(now.Nano())
		}
	})
	used := s.processorTime()
	require.GreaterOrEqual(t, used, work)
	s.Halt()
	s.CloseFDs()
	require.GreaterOrEqual(t, s.processorTime(), used)
	require.GreaterOrEqual(t, used, spent)
}
