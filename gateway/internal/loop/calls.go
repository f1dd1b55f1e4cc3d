package loop

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// ErrNoAnswer means that a call of an adapter has not returned in its time.
var ErrNoAnswer = errors.New("RDMA adapter does not answer")

// Calls are what takes an adapter long: a few at a time, the others in turn. When one of them takes longer
// than it may, the adapter does not answer until that has returned: nothing waits for it meanwhile, and
// nothing is begun. So what an adapter holds is bounded by the number of turns.
type Calls struct {
	turns    chan struct{} // has something for each call under way
	patience time.Duration
	log      *slog.Logger

	mu     sync.Mutex    // guards everything below
	late   int           // calls under way that take too long, and one that has been closed
	silent chan struct{} // closed while there are
}

// leastPatience is how long a call may take at least: what takes an adapter milliseconds takes longer where its
// host is busy.
const leastPatience = 500 * time.Millisecond

// NewCalls returns calls of which so many are done at a time, each of them within patience. The log is told when
// one is not, and when all are again.
func NewCalls(most int, patience time.Duration, log *slog.Logger) *Calls {
	return &Calls{turns: make(chan struct{}, most), patience: max(patience, leastPatience), log: log, silent: make(chan struct{})}
}

// Do does a call in its turn.
func (c *Calls) Do(call func() error) error {
	end, _, err := c.begin()
	if err != nil {
		return err
	}
	defer end()
	return call()
}

// Make returns what a call makes in its turn. It does not wait for an adapter that does not answer: what the
// call makes after that is for undo, in the same turn.
func Make[T any](c *Calls, call func() (T, error), undo func(T)) (made T, err error) {
	end, silent, err := c.begin()
	if err != nil {
		return made, err
	}
	type answer struct {
		made  T
		err   error
		panic any
	}
	done, left := make(chan answer), make(chan struct{})
	go func() {
		defer end()
		var a answer
		func() {
			defer func() {
				if r := recover(); r != nil {
					a.panic = fmt.Sprintf("%v\n%s", r, debug.Stack())
				}
			}()
			a.made, a.err = call()
		}()
		select {
		case done <- a:
		case <-left:
			if a.panic != nil {
				panic(a.panic)
			}
			if a.err == nil {
				undo(a.made)
			}
		}
	}()
	select {
	case a := <-done:
		if a.panic != nil {
			panic(a.panic) // its owner is the caller's
		}
		return a.made, a.err
	case <-silent:
		close(left)
		return made, ErrNoAnswer
	}
}

// Silent reports whether the adapter does not answer.
func (c *Calls) Silent() bool {
	select {
	case <-c.silence():
		return true
	default:
		return false
	}
}

// Busy reports whether a call is under way.
func (c *Calls) Busy() bool { return len(c.turns) > 0 }

// Close waits for what is under way. Nothing is begun after it.
func (c *Calls) Close() {
	c.count(1)
	for range cap(c.turns) {
		c.turns <- struct{}{}
	}
}

// begin waits for a turn, which end ends. silent is closed as soon as the adapter does not answer.
func (c *Calls) begin() (end func(), silent <-chan struct{}, err error) {
	silent = c.silence()
	select {
	case <-silent: // even if there is a turn
		return nil, nil, ErrNoAnswer
	default:
	}
	select {
	case <-silent:
		return nil, nil, ErrNoAnswer
	case c.turns <- struct{}{}:
	}
	timer := time.AfterFunc(c.patience, func() {
		if c.count(1) {
			c.log.Warn("RDMA adapter does not answer: new connections go without it", "patience", c.patience)
		}
	})
	return func() {
		if !timer.Stop() && c.count(-1) {
			c.log.Info("RDMA adapter answers again")
		}
		<-c.turns
	}, silent, nil
}

func (c *Calls) silence() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.silent
}

// count changes how many are late, and reports whether that changes whether the adapter answers. The end of a
// call may be counted before that it is late.
func (c *Calls) count(by int) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.late > 0
	c.late += by
	switch is := c.late > 0; {
	case is == was:
		return false
	case is:
		close(c.silent)
	default:
		c.silent = make(chan struct{})
	}
	return true
}
