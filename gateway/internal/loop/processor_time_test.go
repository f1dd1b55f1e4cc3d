package loop

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The processor time of a shard is that of its thread, and stays when the thread has ended.
func TestProcessorTime(t *testing.T) {
	s, err := New(0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Zero(t, s.processorTime())
	s.Start()
	const work = 50 * time.Millisecond
	var spent time.Duration
	s.Call(func() {
		for spent < work {
			var now unix.Timespec
			assert.NoError(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now))
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

// TestTimes: each shard counts on where one of its number has ended, and no number shrinks.
func TestTimes(t *testing.T) {
	var times Times
	last := map[string]time.Duration{}
	grown := func() {
		now := times.Used()
		for of, d := range last {
			require.GreaterOrEqual(t, now[of], d, of)
		}
		last = now
	}
	open := func() []*Shard {
		s, err := New(0, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		s.Start()
		return []*Shard{s}
	}
	works := func(list []*Shard) {
		const work = 20 * time.Millisecond
		list[0].Call(func() {
			for list[0].processorTime() < work {
				continue
			}
		})
	}
	end := func(list []*Shard) {
		list[0].Halt()
		list[0].CloseFDs()
	}
	old := open()
	times.Begin(old)
	works(old)
	grown()
	next := open() // prepared: its thread is of the rest
	works(next)
	grown()
	end(old)
	grown()
	before := last["shard0"]
	times.End()
	times.Begin(next)
	grown()
	require.GreaterOrEqual(t, last["shard0"], before+20*time.Millisecond, "of both")
	for range 1000 { // the clocks are not read at one instant
		grown()
	}
	end(next)
	times.End()
	grown()
	require.Len(t, last, 2)
}
