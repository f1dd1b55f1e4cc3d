package mirror

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/loop"
)

// slowFor is how long no shard makes calls on the sockets of a process that has held one up.
const slowFor = 10 * time.Second

// aside makes the calls on the sockets of a process beside the shards, one after the other, while the process holds one
// up and for a while after that, and while many processes do. The zero value has seen none. It is safe for concurrent
// use, and needs no end.
type aside struct {
	heldAt loop.Instant
	held   atomic.Int32

	mu   sync.Mutex
	jobs []func() // the first is running
}

// takes makes o's call if the shard must not.
func (a *aside) takes(o loop.Outsider, s *loop.Shard) bool {
	at := a.heldAt.Load()
	if (at.IsZero() || a.held.Load() == 0 && s.Now().Sub(at) > slowFor) && !s.Crowded() {
		return false
	}
	job := func() { s.Beside(o) }
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.jobs = append(a.jobs, job); len(a.jobs) == 1 {
		go a.run(job)
	}
	return true
}

// run does the first job, and those after it until there are none.
func (a *aside) run(job func()) {
	for ; job != nil; job = a.next() {
		job()
	}
}

func (a *aside) next() (job func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.jobs = a.jobs[1:]; len(a.jobs) > 0 {
		job = a.jobs[0]
	}
	return job
}

// heldUp is the part of a loop.Outsider that notes whether its call is held up. The shard owns it.
type heldUp struct {
	calls *aside
	shard *loop.Shard
	is    bool
}

// Held implements loop.Outsider.
func (h *heldUp) Held() {
	h.is = true
	h.calls.held.Add(1)
	h.calls.heldAt.Store(h.shard.Now())
}

// returned notes that the call has returned.
func (h *heldUp) returned() {
	if h.is {
		h.is = false
		h.calls.heldAt.Store(h.shard.Now())
		h.calls.held.Add(-1)
	}
}
