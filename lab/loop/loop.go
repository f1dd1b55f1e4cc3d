package loop

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
)

// Loop is a goroutine that drives one vector of a device. Functions passed to Do, and the turn function, do everything
// that belongs to the vector's loop.
type Loop struct {
	driver verbs.Driver
	turn   func() bool
	ep     int
	kick   int
	done   chan struct{}

	mu     sync.Mutex // guards everything below
	jobs   []func()
	closed bool
}

// New takes the vector and starts its goroutine, which lives until Close. If turn is not nil, the goroutine calls it
// after every Progress: it polls CQs, posts work, and reports whether it found any.
func New(dev verbs.Device, vector int, turn func() bool) (*Loop, error) {
	l := &Loop{turn: turn, ep: -1, kick: -1, done: make(chan struct{})}
	if l.turn == nil {
		l.turn = func() bool { return false }
	}
	if err := l.open(dev, vector); err != nil {
		l.closeFDs()
		return nil, fmt.Errorf("open loop of vector %d: %w", vector, err)
	}
	go l.run()
	return l, nil
}

func (l *Loop) open(dev verbs.Device, vector int) (err error) {
	if l.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if l.kick, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	if err = l.Add(l.kick); err != nil {
		return err
	}
	l.driver, err = dev.Drive(vector, l)
	return err
}

// Add implements verbs.Poller.
func (l *Loop) Add(fd int) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)}
	return unix.EpollCtl(l.ep, unix.EPOLL_CTL_ADD, fd, &ev)
}

// Remove implements verbs.Poller.
func (l *Loop) Remove(fd int) error {
	return unix.EpollCtl(l.ep, unix.EPOLL_CTL_DEL, fd, nil)
}

// Do runs f in the loop's goroutine and waits until it has returned. The loop itself must not call it. After Close it
// returns verbs.ErrClosed.
func (l *Loop) Do(f func()) error {
	ran := make(chan struct{})
	if err := l.post(func() { defer close(ran); f() }); err != nil {
		return err
	}
	select {
	case <-ran:
		return nil
	case <-l.done:
	}
	select {
	case <-ran:
		return nil
	default:
		return verbs.ErrClosed
	}
}

func (l *Loop) post(f func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return verbs.ErrClosed
	}
	l.jobs = append(l.jobs, f)
	l.wake()
	return nil
}

// wake makes the loop run its jobs. The caller holds mu, which keeps kick open.
func (l *Loop) wake() {
	one := [8]byte{1}
	_, _ = unix.Write(l.kick, one[:])
}

// Close stops the goroutine and returns the vector. It waits until both are done.
func (l *Loop) Close() error {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		l.wake()
	}
	l.mu.Unlock()
	<-l.done
	return nil
}

func (l *Loop) run() {
	defer close(l.done)
	for {
		worked, next := l.driver.Progress(time.Now())
		jobs, closed := l.take()
		for _, job := range jobs {
			job()
		}
		worked = l.turn() || worked || len(jobs) > 0
		l.driver.Flush()
		if closed {
			break
		}
		if !worked && l.driver.Arm() {
			l.sleep(next)
			l.driver.Disarm()
		}
	}
	_ = l.driver.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closeFDs()
}

func (l *Loop) take() ([]func(), bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	jobs := l.jobs
	l.jobs = nil
	return jobs, l.closed
}

// sleep waits for an fd, or until next. The kick eventfd is never drained: edge-triggered, it reports each write once.
func (l *Loop) sleep(next time.Time) {
	timeout := -1
	if !next.IsZero() {
		timeout = max(0, int(time.Until(next)+time.Millisecond-1)/int(time.Millisecond))
	}
	var evs [16]unix.EpollEvent
	for {
		_, err := unix.EpollWait(l.ep, evs[:], timeout)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func (l *Loop) closeFDs() {
	for _, fd := range []*int{&l.kick, &l.ep} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}
