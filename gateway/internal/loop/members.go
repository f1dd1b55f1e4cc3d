package loop

import (
	"fmt"
	"runtime/debug"

	"github.com/smcgw/smcgw/verbs"
)

// Owner is what a shard works for, and what ends when that work panics.
type Owner interface {
	// Panicked is called where the panic was recovered, with its value.
	Panicked(r any)
}

// Work is what a shard does for one owner.
type Work interface {
	// Owner is what the work is for; nil: what all share, whose panic the process does
	// not survive.
	Owner() Owner
}

// Completer is what takes the completions of a queue pair.
type Completer interface {
	Work
	// Complete takes one completion. wc is the shard's.
	Complete(wc *verbs.WC)
}

// Member is one data path on a shard: the pump of an app leg. Its methods are called
// on the shard.
type Member interface {
	Work
	// Event takes edges of the member's descriptor, as of epoll.
	Event(events uint32)
}

// Servicer is a member that has a budget for each turn of the shard.
type Servicer interface {
	Work
	// Service goes on with what [Shard.Later] was asked for.
	Service()
}

// WorksFor names the owner of the work that follows; nil: the shard itself. Work
// that is posted after the loop has ended runs on the goroutine of the caller, and
// names no owner.
func (s *Shard) WorksFor(o Owner) {
	if !s.left.Load() {
		s.about = o
	}
}

// contain is deferred by the loops of a shard that work for one flow after the
// other: after a panic of the one at *next they go on with the one after it.
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
