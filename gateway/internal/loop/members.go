package loop

import (
	"fmt"
	"runtime/debug"

	"golang.org/x/sys/unix"

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

// dispatch hands events from i on to the flows that own the descriptors, and returns where to go on after a panic.
// Doorbells and the kick have no flow: the next turn finds their work.
func (s *Shard) dispatch(events []unix.EpollEvent, i int) (next int) {
	defer s.contain(&next)
	for next = i; next < len(events); next++ {
		ev := &events[next]
		if m := s.fds[ev.Fd]; m != nil {
			s.about = m.Owner()
			m.Event(ev.Events)
		} else if fn := s.others[ev.Fd]; fn != nil {
			s.about = nil // fn calls WorksFor itself
			fn(ev.Events)
		}
	}
	return next
}

// bothWays are the edges of both directions of a socket. After an urgent byte has arrived, every edge includes EPOLLPRI
// until that byte has been read.
const bothWays = unix.EPOLLIN | unix.EPOLLPRI | unix.EPOLLOUT | unix.EPOLLRDHUP

// Join registers a member and its descriptor, for both directions.
func (s *Shard) Join(m Member, fd int) error {
	if err := s.add(fd, bothWays); err != nil {
		return fmt.Errorf("app leg: %w", err)
	}
	s.fds[int32(fd)] = m
	return nil
}

// Succeed passes a member's descriptor on to another member. No edge is lost.
func (s *Shard) Succeed(m Member, fd int) { s.fds[int32(fd)] = m }

// Watch implements host.Loop.
func (s *Shard) Watch(fd int, fn func(events uint32)) error { return s.watchFor(fd, bothWays, fn) }

// WatchReads calls fn at each edge at which a descriptor becomes readable. The caller is on the shard.
func (s *Shard) WatchReads(fd int, fn func(events uint32)) error {
	return s.watchFor(fd, unix.EPOLLIN, fn)
}

func (s *Shard) watchFor(fd int, edges uint32, fn func(events uint32)) error {
	if err := s.add(fd, edges); err != nil {
		return err
	}
	s.others[int32(fd)] = fn
	return nil
}

// Unwatch implements host.Loop. It also undoes WatchReads.
func (s *Shard) Unwatch(fd int) {
	delete(s.others, int32(fd))
	_ = s.Remove(fd)
}

// Leave unregisters an app leg's descriptor. The caller closes it.
func (s *Shard) Leave(fd int) {
	delete(s.fds, int32(fd))
	_ = unix.EpollCtl(s.epfd, unix.EPOLL_CTL_DEL, fd, nil)
}
