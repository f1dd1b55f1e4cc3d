package loop

import (
	"fmt"

	"golang.org/x/sys/unix"
)

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
