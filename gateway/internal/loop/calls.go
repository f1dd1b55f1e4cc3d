package loop

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// ErrNoAnswer means that a call to an adapter has not returned in time.
var ErrNoAnswer = errors.New("RDMA adapter does not answer")

// Calls limits calls that may take an adapter long: a few run at a time, the others wait for a turn. While a call takes
// longer than it may, the adapter is silent: no caller waits for it, and no call is begun. So what an adapter holds up
// is bounded by the number of turns.
type Calls struct {
	turns    chan struct{} // holds an element for each running call
	patience time.Duration
	log      *slog.Logger

	mu     sync.Mutex    // guards everything below
	late   int           // running calls that take too long, plus 1 once closed
	silent chan struct{} // closed while late > 0
}

// leastPatience is the least patience: what takes an adapter milliseconds takes longer on a busy host.
const leastPatience = 500 * time.Millisecond

// NewCalls returns a Calls that runs up to most calls at a time, each of which should return within patience. It logs
// when one does not, and when all do again.
func NewCalls(most int, patience time.Duration, log *slog.Logger) *Calls {
	return &Calls{turns: make(chan struct{}, most), patience: max(patience, leastPatience), log: log, silent: make(chan struct{})}
}

// Do runs a call in its turn.
func (c *Calls) Do(call func() error) error {
	end, _, err := c.begin()
	if err != nil {
		return err
	}
	defer end()
	return call()
}

// Make runs a call in its turn and returns its result. It does not wait for a silent adapter: if the call returns a
// result later, undo gets it, in the same turn.
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
			panic(a.panic) // in the caller's goroutine, whose owner it concerns
		}
		return a.made, a.err
	case <-silent:
		close(left)
		return made, ErrNoAnswer
	}
}

// Silent reports whether the adapter is silent.
func (c *Calls) Silent() bool {
	select {
	case <-c.silence():
		return true
	default:
		return false
	}
}

// Busy reports whether a call is running.
func (c *Calls) Busy() bool { return len(c.turns) > 0 }

// Close waits for running calls. No call is begun after it.
func (c *Calls) Close() {
	c.count(1)
	for range cap(c.turns) {
		c.turns <- struct{}{}
	}
}

// begin waits for a turn, which the caller ends by end. silent is closed as soon as the adapter is silent.
func (c *Calls) begin() (end func(), silent <-chan struct{}, err error) {
	silent = c.silence()
	select {
	case <-silent: // even if a turn is free
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

// count changes the number of late calls, and reports whether the adapter has become silent or ceased to be. The end of
// a call may be counted before its being late.
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
