package loop

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// laneDepth is the most completions that a lane holds, which suffices for about sixty links.
const laneDepth = 1 << 15

// Lane is one completion queue of an adapter on a shard. When a completion queue overflows, the adapter ends every
// queue pair that uses it. So queue pairs are admitted only while all of their work requests together fit.
type Lane struct {
	*Queue
	used atomic.Int64 // work requests of the admitted queue pairs
}

// Lanes are the completion queues of an adapter, on each shard as many as its queue pairs need.
type Lanes struct {
	dev   verbs.Device
	depth int
	mu    sync.Mutex // held by Admit only, which may block
	of    []atomic.Pointer[[]*Lane]
}

// NewLanes returns the Lanes of a device, with no completion queue yet.
func NewLanes(dev verbs.Device, shards int) *Lanes {
	return &Lanes{dev: dev, depth: min(laneDepth, dev.Attr().MaxCQE), of: make([]atomic.Pointer[[]*Lane], shards)}
}

// LaneNeed returns how many completions a queue pair may have pending: one for each of its work requests.
func LaneNeed(c verbs.QPCap) int { return c.MaxSendWR + c.MaxRecvWR }

// Admit reserves room for a queue pair. It may create a completion queue, and block.
func (ls *Lanes) Admit(s *Shard, need int) (*Lane, error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if need > ls.depth {
		return nil, fmt.Errorf("completion queue of %d for %d work requests: %w", ls.depth, need, verbs.ErrInvalid)
	}
	list := ls.OfShard(s)
	for _, ln := range list {
		if ln.used.Load()+int64(need) <= int64(ln.depth) { // concurrent changes only decrease it
			ln.used.Add(int64(need))
			return ln, nil
		}
	}
	cq, err := ls.dev.CreateCQ(verbs.CQAttr{Depth: ls.depth, Vector: s.ID()})
	if err != nil {
		return nil, fmt.Errorf("completion queue: %w", err)
	}
	ln := &Lane{Queue: NewQueue(cq)}
	ln.depth = ls.depth
	ln.used.Store(int64(need))
	longer := append(append([]*Lane(nil), list...), ln)
	ls.of[s.ID()].Store(&longer)
	s.Post(func() { s.AddQueue(ln.Queue) })
	return ln, nil
}

// OfShard returns the lanes of a shard.
func (ls *Lanes) OfShard(s *Shard) []*Lane {
	if list := ls.of[s.ID()].Load(); list != nil {
		return *list
	}
	return nil
}

// All returns every lane.
func (ls *Lanes) All() (list []*Lane) {
	for i := range ls.of {
		if of := ls.of[i].Load(); of != nil {
			list = append(list, *of...)
		}
	}
	return list
}

// Used returns how many work requests the lane is reserved for.
func (ln *Lane) Used() int { return int(ln.used.Load()) }

// Leave releases the room of a queue pair that was closed. It waits until the queue cannot have completions of it any
// more: a turn of the shard has emptied the queue, or turns have taken as many as fit.
func (ln *Lane) Leave(s *Shard, need int) {
	s.Post(func() { ln.leaveBehind(s, need, ln.emptied, (ln.depth+wcTurn-1)/wcTurn) })
}

// leaveBehind releases the room after the next turn, or after up to turns turns if they do not empty the queue.
func (ln *Lane) leaveBehind(s *Shard, need int, emptied uint64, turns int) {
	s.Post(func() {
		if turns > 1 && ln.emptied == emptied {
			ln.leaveBehind(s, need, emptied, turns-1)
			return
		}
		ln.used.Add(-int64(need))
	})
}

// Reaper does slow work in order, on a goroutine of its own: what may take as long as a turn of a shard, such as
// closing a queue pair or an adapter's memory. Its queue is bounded by what there is to close.
type Reaper struct {
	mu    sync.Mutex // guards everything below
	jobs  []func()
	wake  chan struct{}
	ended bool
	done  sync.WaitGroup
}

// NewReaper returns a reaper that runs until Close.
func NewReaper() *Reaper {
	r := &Reaper{wake: make(chan struct{}, 1)}
	r.done.Go(r.run)
	return r
}

// Put queues a job. It does not block.
func (r *Reaper) Put(job func()) {
	r.mu.Lock()
	r.jobs = append(r.jobs, job)
	r.mu.Unlock()
	r.ring()
}

func (r *Reaper) ring() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Reaper) run() {
	for {
		r.mu.Lock()
		jobs, ended := r.jobs, r.ended
		r.jobs = nil
		r.mu.Unlock()
		for _, job := range jobs {
			job()
		}
		switch {
		case len(jobs) > 0:
		case ended:
			return
		default:
			<-r.wake
		}
	}
}

// Close ends the goroutine after it has done all jobs.
func (r *Reaper) Close() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.ring()
	r.done.Wait()
}

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
