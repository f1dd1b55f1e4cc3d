package loop

import "sync"

// Reaper does slow work in order, on a goroutine of its own: what may take as long as a turn of a shard, such as
// closing a queue pair or an adapter's memory. Its queue is bounded by what there is to close.
type Reaper struct {
	mu    sync.Mutex // guards everything below
	jobs  []func()
	wake  chan struct{}
	ended bool
	done  sync.WaitGroup
}

// NewReaper returns a reaper that runs until Close.
func NewReaper() *Reaper {
	r := &Reaper{wake: make(chan struct{}, 1)}
	r.done.Go(r.run)
	return r
}

// Put queues a job. It does not block.
func (r *Reaper) Put(job func()) {
	r.mu.Lock()
	r.jobs = append(r.jobs, job)
	r.mu.Unlock()
	r.ring()
}

func (r *Reaper) ring() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Reaper) run() {
	for {
		r.mu.Lock()
		jobs, ended := r.jobs, r.ended
		r.jobs = nil
		r.mu.Unlock()
		for _, job := range jobs {
			job()
		}
		switch {
		case len(jobs) > 0:
		case ended:
			return
		default:
			<-r.wake
		}
	}
}

// Close ends the goroutine after it has done all jobs.
func (r *Reaper) Close() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.ring()
	r.done.Wait()
}
