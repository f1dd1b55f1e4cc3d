package loop

import (
	"fmt"
	"runtime/debug"

	"github.com/smcgw/smcgw/verbs"
)

// Owner is what a shard works for. If that work panics, only its owner ends.
type Owner interface {
	// Panicked is called with the value of a recovered panic.
	Panicked(r any)
}

// Work is work that a shard does for one owner.
type Work interface {
	// Owner returns what the work is for. nil means all that share the shard; the process does not survive a panic in
	// such work.
	Owner() Owner
}

// Completer receives the completions of a queue pair.
type Completer interface {
	Work
	// Complete handles one completion. wc is valid only during the call.
	Complete(wc *verbs.WC)
}

// Member is one data path on a shard: the pump of an app leg. Its methods are called
// on the shard.
type Member interface {
	Work
	// Event handles epoll edges of the member's descriptor.
	Event(events uint32)
}

// Servicer is a member that has a budget for each turn of the shard.
type Servicer interface {
	Work
	// Service does the work for which [Shard.Later] was called.
	Service()
}

// WorksFor sets the owner of the work that follows; nil: the shard itself. It has no effect after the loop has ended,
// when posted functions run on the goroutines of their callers.
func (s *Shard) WorksFor(o Owner) {
	if !s.left.Load() {
		s.about = o
	}
}

// contain is deferred by the loops of a shard that work for one flow after another. After a panic in the work for the
// one at *next, they go on with the one after it.
func (s *Shard) contain(next *int) {
	r := recover()
	o := s.about
	s.WorksFor(nil)
	if r == nil {
		return
	}
	if o == nil {
		s.log.Error("internal error: the daemon ends", "shard", s.id, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
		panic(r)
	}
	*next++
	o.Panicked(r)
}
