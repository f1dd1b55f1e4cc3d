package shm

import "sync"

// jobGroup is the job queues of a device, for work that takes longer than a loop or a lock holder may wait. The zero
// value is ready to use.
type jobGroup struct {
	ended sync.WaitGroup

	mu     sync.Mutex // guards everything below, and the queues; no job runs with it
	busy   int        // queues that run
	closed bool
}

// jobQueue runs jobs in order, on a goroutine that exists while there are any, so that a blocked queue does not block
// others. Its user bounds the jobs.
type jobQueue struct {
	group   *jobGroup
	jobs    []func()
	running bool
}

// Queue returns an empty queue of the group.
func (g *jobGroup) Queue() *jobQueue { return &jobQueue{group: g} }

// Put queues a job without blocking. It returns false once the group is closed; the caller keeps the job then.
func (q *jobQueue) Put(job func()) bool {
	g := q.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	if q.jobs = append(q.jobs, job); !q.running {
		q.running = true
		g.busy++
		g.ended.Go(q.run)
	}
	return true
}

func (q *jobQueue) run() {
	for {
		jobs := q.take()
		if len(jobs) == 0 {
			return
		}
		for _, job := range jobs {
			job()
		}
	}
}

// take returns the queued jobs; if there are none, the goroutine ends.
func (q *jobQueue) take() []func() {
	q.group.mu.Lock()
	defer q.group.mu.Unlock()
	jobs := q.jobs
	if q.jobs = nil; len(jobs) == 0 {
		q.running = false
		q.group.busy--
	}
	return jobs
}

// Busy returns how many queues have jobs; each has a goroutine.
func (g *jobGroup) Busy() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.busy
}

// Close closes the group and returns when all queued jobs are done.
func (g *jobGroup) Close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.ended.Wait()
}
