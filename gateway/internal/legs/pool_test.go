package legs

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/process"
)

// pipes makes descriptors as a keeper makes sockets.
func pipes(t *testing.T) (func(int) ([]int, error), *atomic.Int64) {
	t.Helper()
	made := new(atomic.Int64)
	return func(count int) (fds []int, err error) {
		for range count {
			fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
			if err != nil {
				return fds, err
			}
			fds = append(fds, fd)
		}
		made.Add(int64(count))
		return fds, nil
	}, made
}

// Every caller gets a socket of its own, above the floor, and what is left is closed.
func TestLegPool(t *testing.T) {
	const asked = 5 * process.LegBatch
	maker, made := pipes(t)
	p := &legPool{make: maker}
	got := make(chan int, asked)
	for range asked {
		p.take(func(fd int, err error) {
			require.NoError(t, err)
			got <- fd
		})
	}
	seen := map[int]bool{}
	for range asked {
		fd := <-got
		require.False(t, seen[fd])
		require.GreaterOrEqual(t, fd, process.LegFloor)
		seen[fd] = true
	}
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.filling && len(p.ready) >= legLow
	}, 30*time.Second, time.Millisecond)
	require.LessOrEqual(t, made.Load(), int64(asked+2*process.LegBatch), "no more than are wanted soon")
	for fd := range seen {
		require.NoError(t, unix.Close(fd))
	}
	require.NoError(t, p.close())
	failed := make(chan error, 1)
	p.take(func(_ int, err error) { failed <- err })
	require.Error(t, <-failed)
}

// A waiting caller hears of a keeper that fails, and the next one asks again.
func TestLegPoolFails(t *testing.T) {
	maker, _ := pipes(t)
	broken := errors.New("broken")
	var fail atomic.Bool
	fail.Store(true)
	p := &legPool{make: func(n int) ([]int, error) {
		if fail.Load() {
			return nil, broken
		}
		return maker(n)
	}}
	results := make(chan error, 3)
	use := func(fd int, err error) {
		if err == nil {
			_ = unix.Close(fd)
		}
		results <- err
	}
	p.take(use)
	require.ErrorIs(t, <-results, broken)
	fail.Store(false)
	require.Eventually(t, func() bool {
		p.take(use)
		return <-results == nil
	}, 30*time.Second, time.Millisecond)
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.filling
	}, 30*time.Second, time.Millisecond)
	require.NoError(t, p.close())
}
