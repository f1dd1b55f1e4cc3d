package mirror

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/loop"
)

// slowFor is how long shards make no calls of a kind after one was held up.
const slowFor = 10 * time.Second

// aside makes calls beside the shards, one after the other, while one is held up and for a while after that. The zero
// value has seen none. It is safe for concurrent use.
type aside struct {
	heldAt loop.Instant
	held   atomic.Int32
	once   sync.Once
	makes  *loop.Reaper
}

// hold notes that a call is held up; release, that it has returned.
func (a *aside) hold(now time.Time) {
	a.once.Do(func() { a.makes = loop.NewReaper() })
	a.held.Add(1)
	a.heldAt.Store(now)
}

func (a *aside) release() { a.held.Add(-1) }

// takes makes o's call, and reports its end to the shard, if the shard must not make it.
func (a *aside) takes(o loop.Outsider, s *loop.Shard) bool {
	at := a.heldAt.Load()
	if at.IsZero() || a.held.Load() == 0 && s.Now().Sub(at) > slowFor {
		return false
	}
	a.makes.Put(func() {
		o.Outside()
		s.Post(func() {
			s.WorksFor(o.Owner())
			o.Back()
		})
	})
	return true
}

// end ends the goroutine after the last call. The caller makes no more.
func (a *aside) end() {
	if !a.heldAt.Load().IsZero() {
		go a.makes.Close() // its last call may still be held up
	}
}
