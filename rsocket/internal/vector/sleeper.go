package vector

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sleeper is what a vector's goroutine sleeps on: an epoll set of the device's descriptors, a timer and an eventfd. The
// Go runtime watches the set itself, so no thread is blocked meanwhile. It is the vector's verbs.Poller.
type sleeper struct {
	ep    *os.File
	raw   syscall.RawConn
	fd    int // of ep
	event int
	timer int
	look  func(fd uintptr) bool // hasEvents, kept because a method value allocates

	stopping atomic.Bool
	mu       sync.Mutex // keeps event open while it is written to
	events   [16]unix.EpollEvent
}

func (s *sleeper) open() error {
	s.fd, s.event, s.timer, s.look = -1, -1, -1, s.hasEvents
	if err := s.create(); err != nil {
		s.close()
		return fmt.Errorf("open epoll set: %w", err)
	}
	return nil
}

func (s *sleeper) create() (err error) {
	if s.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if err = unix.SetNonblock(s.fd, true); err != nil { // the runtime watches only non-blocking files
		return err
	}
	s.ep = os.NewFile(uintptr(s.fd), "rsocket vector")
	if s.raw, err = s.ep.SyscallConn(); err != nil {
		return err
	}
	if s.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	if s.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return err
	}
	if err = s.Add(s.event); err != nil {
		return err
	}
	return s.Add(s.timer)
}

// Add implements verbs.Poller.
func (s *sleeper) Add(fd int) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)}
	return unix.EpollCtl(s.fd, unix.EPOLL_CTL_ADD, fd, &ev)
}

// Remove implements verbs.Poller.
func (s *sleeper) Remove(fd int) error {
	return unix.EpollCtl(s.fd, unix.EPOLL_CTL_DEL, fd, nil)
}

// sleep returns when a descriptor became ready or the timer fired. Events are edge-triggered, so nothing needs to be
// read.
func (s *sleeper) sleep() { _ = s.raw.Read(s.look) }

// hasEvents polls the set without waiting.
func (s *sleeper) hasEvents(fd uintptr) bool {
	n, _ := unix.EpollWait(int(fd), s.events[:], 0)
	return n != 0 || s.stopping.Load() // a spurious wake-up only looks again
}

// rouse ends the sleep.
func (s *sleeper) rouse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := [8]byte{1}
	_, _ = unix.Write(s.event, one[:])
}

// setTimer makes the sleep end after d, immediately if d is not positive.
func (s *sleeper) setTimer(d time.Duration) {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(1, d.Nanoseconds()))}
	_ = unix.TimerfdSettime(s.timer, 0, &spec, nil)
}

func (s *sleeper) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fd := range []*int{&s.event, &s.timer} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
	switch {
	case s.ep != nil:
		_ = s.ep.Close()
	case s.fd >= 0:
		_ = unix.Close(s.fd)
	}
	s.ep, s.fd = nil, -1
}
