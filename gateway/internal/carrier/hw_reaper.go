package carrier

import "sync"

// reaper does in order, on a goroutine of its own, what closes the queue pairs and
// memory of an adapter: each close takes the adapter as long as a turn of a shard may.
// What waits is bounded by the queue pairs that there are.
type reaper struct {
	mu    sync.Mutex // guards everything below
	jobs  []func()
	wake  chan struct{}
	ended bool
	done  sync.WaitGroup
}

func newReaper() *reaper {
	r := &reaper{wake: make(chan struct{}, 1)}
	r.done.Go(r.run)
	return r
}

// put has a job done behind those before it. It does not block.
func (r *reaper) put(job func()) {
	r.mu.Lock()
	r.jobs = append(r.jobs, job)
	r.mu.Unlock()
	r.ring()
}

func (r *reaper) ring() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *reaper) run() {
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

// close ends the goroutine behind what was put.
func (r *reaper) close() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.ring()
	r.done.Wait()
}
