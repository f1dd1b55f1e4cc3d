package testnet

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"github.com/vishvananda/netns"
)

// thread is an operating system thread that stays in a namespace.
//
// Processes are started from it, because the parent-death signal of a child depends on the thread that forked it: when
// this thread ends, deliberately or with a crashed test, its children end, too.
type thread struct {
	work chan func()
	stop chan struct{}
	done chan struct{}
	once sync.Once
}

func startThread(h netns.NsHandle) (*thread, error) {
	t := &thread{work: make(chan func()), stop: make(chan struct{}), done: make(chan struct{})}
	ready := make(chan error, 1)
	go t.run(h, ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return t, nil
}

// run executes functions in the namespace. It never unlocks its thread, so the thread ends with the goroutine.
func (t *thread) run(h netns.NsHandle, ready chan<- error) {
	defer close(t.done)
	runtime.LockOSThread()
	if err := netns.Set(h); err != nil {
		ready <- fmt.Errorf("enter namespace: %w", err)
		return
	}
	ready <- nil
	for {
		select {
		case fn := <-t.work:
			fn()
		case <-t.stop:
			return
		}
	}
}

// do runs fn on the thread. It returns [os.ErrClosed] after close.
func (t *thread) do(fn func() error) error {
	result := make(chan error, 1)
	select {
	case t.work <- func() { result <- fn() }:
		return <-result
	case <-t.done:
		return os.ErrClosed
	}
}

func (t *thread) close() {
	t.once.Do(func() { close(t.stop) })
	<-t.done
}
