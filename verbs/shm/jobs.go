package shm

import "sync"

// jobGroup is the queues of a device, which do what takes longer than a loop or a lock may
// wait, and end with it. The zero value is ready to use.
type jobGroup struct {
	ended sync.WaitGroup

	mu     sync.Mutex // guards everything below, and the queues; no job runs with it
	busy   int        // queues that run
	closed bool
}

// jobQueue does jobs in order, on a goroutine that lives while there are some: one that is
// held up holds up no other queue. Its user bounds the jobs.
type jobQueue struct {
	group   *jobGroup
	jobs    []func()
	running bool
}

// Queue returns an empty queue of the group.
func (g *jobGroup) Queue() *jobQueue { return &jobQueue{group: g} }

// Put has job done after those before it, and does not block. It is false, and the job
// the caller's, once the group is closed.
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

// take returns what is to be done; with nothing, the goroutine ends.
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

// Busy returns how many queues have something to do: each has a goroutine.
func (g *jobGroup) Busy() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.busy
}

// Close returns when all that was put is done.
func (g *jobGroup) Close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.ended.Wait()
}
