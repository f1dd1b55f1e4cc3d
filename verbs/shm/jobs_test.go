package shm

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestJobs: jobs are done in order, those that jobs put too, and Close waits for all.
func TestJobs(t *testing.T) {
	var g jobGroup
	q := g.Queue()
	turn := make(chan struct{})
	var order []int
	do := func(n int) bool { return q.Put(func() { order = append(order, n) }) }
	require.True(t, q.Put(func() { turn <- struct{}{}; do(4); turn <- struct{}{} }))
	for n := range 4 {
		require.True(t, do(n))
	}
	<-turn
	<-turn
	g.Close()
	require.Equal(t, []int{0, 1, 2, 3, 4}, order)
	require.False(t, q.Put(func() { t.Error("a job after Close") }))
	g.Close()
}

// TestJobsApart: a job that is held up holds up no other queue.
func TestJobsApart(t *testing.T) {
	var g jobGroup
	held, other := g.Queue(), g.Queue()
	gate, done := make(chan struct{}), make(chan struct{})
	require.True(t, held.Put(func() { <-gate }))
	require.True(t, other.Put(func() { close(done) }))
	<-done
	close(gate)
	g.Close()
}

// TestJobsOfMany: what several goroutines put, while the goroutine of the queue comes
// and goes, is done once.
func TestJobsOfMany(t *testing.T) {
	var g jobGroup
	q := g.Queue()
	var putters sync.WaitGroup
	done := 0
	for range 8 {
		putters.Go(func() {
			for range 1000 {
				q.Put(func() { done++ })
			}
		})
	}
	putters.Wait()
	g.Close()
	require.Equal(t, 8000, done)
}
