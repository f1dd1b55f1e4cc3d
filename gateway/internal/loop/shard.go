package loop

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"runtime/trace"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
)

const (
	// busyTail is how long a shard without work still waits by raw system
	// calls, which keep its P; after it, it waits as any goroutine does, or
	// the runtime's monitor would never sleep (docs/ARCHITECTURE.md "Shards").
	busyTail = 10 * time.Millisecond
	// shardRest is the longest wait of a shard. A thread that oversleeps it, without
	// a wake-up under way, gets no processor.
	shardRest = time.Second
	// wcBatch is how many completions one poll of a CQ takes, wcTurn how many a turn takes of
	// each: more may come as fast as they are taken.
	wcBatch = 64
	wcTurn  = 16 * wcBatch
)

// Shard is one event loop: a locked OS thread with its own epoll fd. A flow
// with an rdma carrier belongs to one shard for life, and the shard owns
// everything on its data path: the app leg's fd, the queue pair, the
// completion queue. Nothing here takes a lock or allocates per byte; other
// goroutines reach a shard only through Post.
type Shard struct {
	id   int
	log  *slog.Logger
	epfd int
	kick int // eventfd: something was posted

	drivers []verbs.Driver
	cqs     []*Queue
	wcs     [wcBatch]verbs.WC
	hands   bool // over what is in wcs
	fds     map[int32]Member
	others  map[int32]func(events uint32) // descriptors that are no app leg's
	timers  timers
	again   []Servicer // members that used up their budget
	spare   []Servicer // the list again changes with
	bulk    bulkList   // members that wait for their step
	chunk   []byte     // see BulkBuffer
	spinner spinner
	placer  placer
	now     time.Time // when the turn began
	about   Owner     // the owner of the work under way, see WorksFor

	mu      sync.Mutex // guards posted, unused, ended and, for writing, kick
	posted  []func()
	unused  []func() // the list posted changes with
	ended   bool     // no loop runs what is posted
	hasPost atomic.Bool
	asleep  atomic.Bool // it waits, or is about to: a post has to ring

	scratch [4096]byte // what a flow reads from its wire leg

	made  time.Time
	due   atomic.Int64 // when the loop turns next at the latest, since made
	tid   atomic.Int32 // of its thread; 0: it does not run
	spent atomic.Int64 // of its thread, when that ended
	begun atomic.Bool  // start was called
	stop  atomic.Bool
	left  atomic.Bool // the loop has ended
	done  chan struct{}
	// after is that of the goroutine that runs what is posted when the loop has ended.
	behind sync.Mutex
}

// TraceCategory is that of what shards log to a trace of the runtime: each post.
const TraceCategory = "shard"

// Queue is the completion queue of one device on one shard, and whose the completions
// are, by the number of the queue pair on that device.
type Queue struct {
	verbs.CQ
	Members map[uint32]Completer

	depth   int    // how many completions wait at most, where more come while they are polled; 0: none do
	failed  bool   // Poll has, and does from then on
	emptied uint64 // how often it was polled until it was empty
}

// NewQueue returns a queue without members.
func NewQueue(cq verbs.CQ) *Queue { return &Queue{CQ: cq, Members: map[uint32]Completer{}} }

// ID is the number of the shard, and of its vector of every device.
func (s *Shard) ID() int { return s.id }

// Now is when the turn began.
func (s *Shard) Now() time.Time { return s.now }

// Scratch is room for what is read and used up at once; the caller is on the shard.
func (s *Shard) Scratch() []byte { return s.scratch[:] }

// NoteRead says how much was read from a member's socket, for the choice of a
// processor.
func (s *Shard) NoteRead(fd, n int) { s.placer.read(fd, n, s.now) }

// Later has a member serviced at the end of the turn.
func (s *Shard) Later(m Servicer) { s.again = append(s.again, m) }

// AddQueue takes in a completion queue, DropQueue lets it go; the caller is on the
// shard.
func (s *Shard) AddQueue(q *Queue) { s.cqs = append(s.cqs, q) }

// DropQueue undoes AddQueue.
func (s *Shard) DropQueue(q *Queue) {
	s.cqs = slices.DeleteFunc(s.cqs, func(o *Queue) bool { return o == q })
}

// Detach lets go of all devices and queues of a shard that has halted: what is still
// posted finds none.
func (s *Shard) Detach() { s.drivers, s.cqs = nil, nil }

// New makes a shard, which Start runs.
func New(id int, log *slog.Logger) (*Shard, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("shard %d: epoll: %w", id, err)
	}
	kick, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		_ = unix.Close(epfd)
		return nil, fmt.Errorf("shard %d: eventfd: %w", id, err)
	}
	s := &Shard{
		id: id, log: log, epfd: epfd, kick: kick, made: time.Now(), spinner: spinner{limit: spinLimit}, placer: newPlacer(),
		fds: map[int32]Member{}, others: map[int32]func(uint32){}, done: make(chan struct{}),
	}
	if err := s.Add(kick); err != nil {
		s.CloseFDs()
		return nil, fmt.Errorf("shard %d: %w", id, err)
	}
	return s, nil
}

// Add registers a descriptor that is never read: each edge wakes the loop.
// With Remove it makes the shard a verbs.Poller. Safe for concurrent use.
func (s *Shard) Add(fd int) error { return s.add(fd, unix.EPOLLIN) }

// add registers the edges of a descriptor.
func (s *Shard) add(fd int, edges uint32) error {
	ev := unix.EpollEvent{Events: edges | unix.EPOLLET, Fd: int32(fd)}
	if err := unix.EpollCtl(s.epfd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("epoll add %d: %w", fd, err)
	}
	return nil
}

// Remove takes back what Add registered.
func (s *Shard) Remove(fd int) error {
	if err := unix.EpollCtl(s.epfd, unix.EPOLL_CTL_DEL, fd, nil); err != nil {
		return fmt.Errorf("epoll remove %d: %w", fd, err)
	}
	return nil
}

// Post implements host.Loop: it runs fn on the shard's thread, in order. After the
// shard has stopped, fn runs in Halt, and after that on the goroutine of a caller of
// Post: every fn runs, and never two at a time.
func (s *Shard) Post(fn func()) {
	if trace.IsEnabled() {
		trace.Log(context.Background(), TraceCategory, "post")
	}
	if s.post(fn) && s.behind.TryLock() { // else the caller that has the lock runs it
		s.runBehind()
	}
}

// post queues fn, and reports that no loop runs it any more.
func (s *Shard) post(fn func()) (ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.posted = append(s.posted, fn)
	s.hasPost.Store(true)
	if s.ended {
		return true
	}
	if s.asleep.CompareAndSwap(true, false) { // under mu: after close the number may be another descriptor's
		s.expect(time.Now())
		_, _ = unix.Write(s.kick, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	return false
}

// Call implements host.Loop: it runs fn on the shard's thread and waits for it.
func (s *Shard) Call(fn func()) {
	ran := make(chan struct{})
	s.Post(func() { defer close(ran); fn() })
	select {
	case <-ran:
	case <-s.done:
		s.finishPosted()
		<-ran
	}
}

// Start runs the loop; the drivers and completion queues are in place.
func (s *Shard) Start() {
	s.begun.Store(true)
	go s.run()
}

// run is the loop. It returns when close asked for it.
func (s *Shard) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s.tid.Store(int32(unix.Gettid()))
	defer close(s.done)
	defer s.left.Store(true)
	defer func() { s.spent.Store(int64(s.processorTime())); s.tid.Store(0) }()
	defer s.placer.release()
	events := make([]unix.EpollEvent, 256)
	lastWork := time.Now()
	for !s.stop.Load() {
		now := time.Now()
		s.due.Store(int64(now.Sub(s.made)))
		worked, next := s.turn(now)
		if worked {
			lastWork = now
			s.spinner.fresh = true
		}
		n := s.wait(events, now, next, worked, now.Sub(lastWork) < busyTail)
		if n > 0 {
			lastWork = now
			s.spinner.fresh = true
		}
		for i := 0; i < n; {
			i = s.dispatch(events[:n], i)
		}
	}
}

// turn does all work that needs no descriptor event. next is the earliest
// time a driver wants to be called again; zero = no wish.
func (s *Shard) turn(now time.Time) (worked bool, next time.Time) {
	s.now = now
	s.placer.expire(now)
	for _, d := range s.drivers {
		w, at := d.Progress(now)
		worked = worked || w
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if s.pollCQs() {
		worked = true
	}
	if s.hasPost.Load() {
		s.runPosted()
		worked = true
	}
	if s.runTimers(now) {
		worked = true
	}
	if s.runAgain() {
		worked = true
	}
	if s.runBulk() {
		worked = true
	}
	s.Flush()
	if len(s.timers) > 0 && (next.IsZero() || s.timers[0].at.Before(next)) {
		next = s.timers[0].at
	}
	return worked, next
}

// AddDriver takes a device in; the caller is on the shard, or it has not started.
func (s *Shard) AddDriver(d verbs.Driver) {
	s.drivers = append(s.drivers, d)
	if p, ok := d.(verbs.Peeker); ok {
		s.spinner.peekers = append(s.spinner.peekers, p)
	}
}

// DropDriver undoes AddDriver; the caller is on the shard.
func (s *Shard) DropDriver(d verbs.Driver) {
	s.drivers = slices.DeleteFunc(s.drivers, func(o verbs.Driver) bool { return o == d })
	if p, ok := d.(verbs.Peeker); ok {
		s.spinner.peekers = slices.DeleteFunc(s.spinner.peekers, func(o verbs.Peeker) bool { return o == p })
	}
}

// Flush rings the doorbells of what was posted.
func (s *Shard) Flush() {
	for _, d := range s.drivers {
		d.Flush()
	}
}

// pollCQs hands completions to their flows: of each queue at most the share of a turn.
func (s *Shard) pollCQs() bool {
	worked := false
	for _, q := range s.cqs {
		worked = s.pollCQ(q, wcTurn) || worked
	}
	return worked
}

// pollCQ hands completions of a queue to their flows, until there is none or it was most.
func (s *Shard) pollCQ(q *Queue, most int) (worked bool) {
	for taken := 0; taken < most; taken += wcBatch {
		n, err := q.Poll(s.wcs[:])
		if err != nil && !q.failed {
			q.failed = true
			s.log.Error("poll completion queue", "shard", s.id, "error", err)
		}
		s.hands = true
		for i := 0; i < n; {
			i = s.complete(q, i, n)
		}
		s.hands = false
		worked = worked || n > 0
		if n < wcBatch {
			q.emptied++
			break
		}
	}
	return worked
}

// complete hands completions from i to n to their flows and returns where to go on.
func (s *Shard) complete(q *Queue, i, n int) (next int) {
	defer s.contain(&next)
	for next = i; next < n; next++ {
		wc := &s.wcs[next]
		if m := q.Members[wc.QPNum]; m != nil {
			s.about = m.Owner()
			m.Complete(wc)
		}
	}
	return next
}

// Collect takes in what the devices have now, in the work for one flow. It panics in
// [Completer.Complete]: the completions after that one would be overwritten.
func (s *Shard) Collect() {
	if s.hands {
		panic("loop: Collect in Complete")
	}
	about := s.about
	defer s.WorksFor(about)
	for _, d := range s.drivers {
		_, _ = d.Progress(time.Now())
	}
	for _, q := range s.cqs {
		most := math.MaxInt
		if q.depth > 0 { // after as many as fit there is what has come since
			most = q.depth
		}
		s.pollCQ(q, most)
	}
}

// runPosted runs what other goroutines posted until now.
func (s *Shard) runPosted() {
	s.hasPost.Store(false)
	s.mu.Lock()
	fns := s.posted
	s.posted = s.unused
	s.unused = nil
	s.mu.Unlock()
	for i := 0; i < len(fns); {
		i = s.call(fns, i)
	}
	clear(fns)
	s.mu.Lock()
	s.unused = fns[:0]
	s.mu.Unlock()
}

// finishPosted runs what is posted after the loop, after other callers.
func (s *Shard) finishPosted() {
	s.behind.Lock()
	s.runBehind()
}

// runBehind runs what is posted, has the lock for it, and unlocks. What is posted
// meanwhile, also by what runs, is the caller's as well.
func (s *Shard) runBehind() {
	run := func() {
		defer s.behind.Unlock()
		s.runPosted()
	}
	for run(); s.hasPost.Load() && s.behind.TryLock(); {
		run()
	}
}

// call calls fns from i on, and returns where to go on. Those that work for a flow
// say so.
func (s *Shard) call(fns []func(), i int) (next int) {
	defer s.contain(&next)
	for next = i; next < len(fns); next++ {
		s.WorksFor(nil)
		fns[next]()
	}
	return next
}

// runAgain continues the flows that had used up their budget.
func (s *Shard) runAgain() bool {
	if len(s.again) == 0 {
		return false
	}
	list := s.again
	s.again = s.spare[:0]
	for i := 0; i < len(list); {
		i = s.pumpFrom(list, i)
	}
	clear(list)
	s.spare = list[:0]
	return true
}

// pumpFrom continues the flows of list from i on and returns where to go on.
func (s *Shard) pumpFrom(list []Servicer, i int) (next int) {
	defer s.contain(&next)
	for next = i; next < len(list); next++ {
		m := list[next]
		s.about = m.Owner()
		m.Service()
	}
	return next
}

// wait sleeps until a descriptor, a doorbell or a driver's time wakes the
// loop. The armed flags are set only around a real sleep: a peer that finds
// them unset saves the doorbell.
func (s *Shard) wait(events []unix.EpollEvent, now, next time.Time, worked, busy bool) int {
	if worked || len(s.again) > 0 || s.bulk.len() > 0 {
		return s.poll(events, 0, true)
	}
	spun := s.spinner.wanted(now)
	if spun {
		if n, found := s.spin(events); found {
			return n
		}
		now = time.Now()
	}
	limit := shardRest
	if busy {
		limit = busyTail
	} else {
		s.placer.release()
	}
	if !next.IsZero() {
		limit = min(limit, max(0, next.Sub(now)))
	}
	s.due.Store(int64(now.Add(limit).Sub(s.made))) // before it looks for posts: see expect
	if !s.arm() {
		s.disarm()
		return s.poll(events, 0, true)
	}
	ms := int((limit + time.Millisecond - 1) / time.Millisecond)
	n := s.poll(events, ms, busy)
	s.disarm()
	if spun {
		s.spinner.woke(time.Now(), now)
	}
	return n
}

// poll is one epoll_pwait, raw or as an ordinary system call. An interrupted
// wait returns no event; the loop then passes through ordinary Go calls, where
// the runtime can stop it.
func (s *Shard) poll(events []unix.EpollEvent, ms int, raw bool) int {
	if raw {
		n, errno := rawEpollWait(s.epfd, events, ms)
		if errno != 0 {
			return 0
		}
		return n
	}
	n, err := unix.EpollWait(s.epfd, events, ms)
	if err != nil {
		return 0
	}
	return n
}

// arm reports whether every driver agrees that there is nothing to do.
func (s *Shard) arm() bool {
	s.asleep.Store(true) // before the look: Post looks in the other order
	if s.hasPost.Load() {
		return false
	}
	for _, d := range s.drivers {
		if !d.Arm() {
			return false
		}
	}
	return true
}

func (s *Shard) disarm() {
	s.asleep.Store(false)
	for _, d := range s.drivers {
		d.Disarm()
	}
}

// Halt ends the loop, waits for it and runs what is still posted. Devices may
// use the poller until CloseFDs.
func (s *Shard) Halt() {
	s.stop.Store(true)
	s.Post(func() {})
	if s.begun.Load() {
		<-s.done
	}
	for {
		s.finishPosted()
		s.mu.Lock()
		s.ended = len(s.posted) == 0
		ended := s.ended
		s.mu.Unlock()
		if ended {
			return
		}
	}
}

// CloseFDs ends a shard that has halted.
func (s *Shard) CloseFDs() {
	_ = unix.Close(s.kick)
	_ = unix.Close(s.epfd)
}
