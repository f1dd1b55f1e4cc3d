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

	"github.com/smcgw/smcgw/internal/due"
	"github.com/smcgw/smcgw/verbs"
)

const (
	// busyTail is how long a shard that has run out of work still waits by raw system calls, which keep its P. After
	// that it waits like any goroutine, or the runtime's monitor would never sleep (docs/ARCHITECTURE.md "Shards").
	busyTail = 10 * time.Millisecond
	// shardRest is the longest wait of a shard. If a thread oversleeps it although nothing else has to wake it, it is
	// not getting a processor.
	shardRest = time.Second
	// wcBatch is how many completions one poll of a CQ takes. wcTurn is how many a turn takes from each CQ: more may
	// arrive as fast as they are taken.
	wcBatch = 64
	wcTurn  = 16 * wcBatch
)

// Shard is one event loop: a locked OS thread with its own epoll descriptor. A flow with an RDMA carrier belongs to one
// shard for life, and the shard owns everything on its data path: the app leg's descriptor, the queue pair, the
// completion queue. The data path takes no lock and does not allocate; other goroutines reach a shard only through
// Post.
type Shard struct {
	id   int
	log  *slog.Logger
	epfd int
	kick int // eventfd that wakes the loop for posts

	drivers []verbs.Driver
	cqs     []*Queue
	wcs     [wcBatch]verbs.WC
	hands   bool // wcs is in use: its completions are being handed over
	fds     map[int32]Member
	others  map[int32]func(events uint32) // handlers of descriptors other than app legs
	timers  due.Timers[func()]
	again   []Servicer // members that used up their budget
	spare   []Servicer // empty; swapped with again
	bulk    bulkList   // members that wait for a step
	chunk   []byte     // see BulkBuffer
	spinner spinner
	placer  placer
	now     time.Time // when the current turn began
	about   Owner     // owner of the current work, see WorksFor

	outsiders []Outsider   // whose calls are due
	called    int          // how many of them were begun in this turn
	outside   Outsider     // the latest whose call was begun
	outsideAt atomic.Int64 // when, since made, while that call may be under way; the thread that sets it to 0 has the shard
	held      atomic.Int32 // calls that are held up

	mu      sync.Mutex // guards posted, unused, ended and, for writing, kick
	posted  []func()
	unused  []func() // empty; swapped with posted
	ended   bool     // no loop runs posted functions any more
	hasPost atomic.Bool
	asleep  atomic.Bool // the loop waits, or is about to: Post must write to kick

	scratch [4096]byte // see Scratch

	made   time.Time
	due    atomic.Int64 // latest time of the next turn, since made
	tid    atomic.Int32 // of its thread; 0: not running
	spent  atomic.Int64 // processor time until the thread ended, if it has
	before atomic.Int64 // processor time of earlier threads
	begun  atomic.Bool  // Start was called
	stop   atomic.Bool
	left   atomic.Bool // the loop has ended
	done   chan struct{}
	// behind is held by the goroutine that runs posted functions after the loop has ended.
	behind sync.Mutex
}

// TraceCategory is the category under which shards log each post to a trace of the runtime.
const TraceCategory = "shard"

// Queue is the completion queue of one device on one shard, with the members that its completions are for, by QP number
// of that device.
type Queue struct {
	verbs.CQ
	Members map[uint32]Completer

	depth   int    // its size if completions may arrive while they are polled; 0: none may
	failed  bool   // Poll has failed, and will from then on
	emptied uint64 // how often polling has emptied it
}

// NewQueue returns a queue without members.
func NewQueue(cq verbs.CQ) *Queue { return &Queue{CQ: cq, Members: map[uint32]Completer{}} }

// ID returns the number of the shard, which is also the number of its vector of every device.
func (s *Shard) ID() int { return s.id }

// Now returns when the current turn began.
func (s *Shard) Now() time.Time { return s.now }

// Scratch returns a buffer for what is read and used up immediately. The caller is on the shard.
func (s *Shard) Scratch() []byte { return s.scratch[:] }

// NoteRead records that n bytes were read from a member's socket, for the choice of a processor.
func (s *Shard) NoteRead(fd, n int) { s.placer.read(fd, n, s.now) }

// Later schedules a member's Service for the end of the turn.
func (s *Shard) Later(m Servicer) { s.again = append(s.again, m) }

// AddQueue adds a completion queue. The caller is on the shard.
func (s *Shard) AddQueue(q *Queue) { s.cqs = append(s.cqs, q) }

// DropQueue undoes AddQueue. The caller is on the shard.
func (s *Shard) DropQueue(q *Queue) {
	s.cqs = slices.DeleteFunc(s.cqs, func(o *Queue) bool { return o == q })
}

// Detach drops all devices and queues of a shard that has halted, so that functions still posted find none.
func (s *Shard) Detach() { s.drivers, s.cqs = nil, nil }

// New makes a shard. Start runs it.
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

// Add registers a descriptor that is never read: each edge wakes the loop. With Remove it makes the shard a
// verbs.Poller. It is safe for concurrent use.
func (s *Shard) Add(fd int) error { return s.add(fd, unix.EPOLLIN) }

// add registers a descriptor for edges.
func (s *Shard) add(fd int, edges uint32) error {
	ev := unix.EpollEvent{Events: edges | unix.EPOLLET, Fd: int32(fd)}
	if err := unix.EpollCtl(s.epfd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("epoll add %d: %w", fd, err)
	}
	return nil
}

// Remove undoes Add.
func (s *Shard) Remove(fd int) error {
	if err := unix.EpollCtl(s.epfd, unix.EPOLL_CTL_DEL, fd, nil); err != nil {
		return fmt.Errorf("epoll remove %d: %w", fd, err)
	}
	return nil
}

// Post implements host.Loop: it queues fn to run on the shard's thread, in order. After the loop has ended, fn runs in
// Halt, and later on the goroutine of some caller of Post. Every fn runs, and never two at a time.
func (s *Shard) Post(fn func()) {
	if trace.IsEnabled() {
		trace.Log(context.Background(), TraceCategory, "post")
	}
	if s.post(fn) && s.behind.TryLock() { // otherwise the holder of the lock runs it
		s.runBehind()
	}
}

// post queues fn. It returns true if no loop runs it any more.
func (s *Shard) post(fn func()) (ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.posted = append(s.posted, fn)
	s.hasPost.Store(true)
	if s.ended {
		return true
	}
	if s.asleep.CompareAndSwap(true, false) { // under mu: after CloseFDs the descriptor may be reused
		s.expect(time.Now())
		_, _ = unix.Write(s.kick, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	return false
}

// Call implements host.Loop: it runs fn on the shard's thread and waits until it has.
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

// Start starts the loop. Drivers and completion queues must be in place.
func (s *Shard) Start() {
	s.begun.Store(true)
	go s.run(func() {})
}

// run is the loop, which begins with first. It returns once Halt asks for it, or once another goroutine has taken over.
// Its thread then ends, too: it may be bound to processors.
func (s *Shard) run(first func()) {
	ends := false
	defer func() {
		if !ends { // as [testing.T.FailNow] does: what waits for the shard would wait for ever
			panic("a function has ended its shard's goroutine")
		}
	}()
	runtime.LockOSThread()
	s.tid.Store(int32(unix.Gettid()))
	first()
	inCharge := s.loop()
	ends = true
	if !inCharge {
		return
	}
	s.dismiss()
	s.placer.release()
	s.spent.Store(int64(s.processorTime()))
	s.tid.Store(0)
	s.left.Store(true)
	close(s.done)
	runtime.UnlockOSThread()
}

// loop returns false if another goroutine has taken over.
func (s *Shard) loop() bool {
	events := make([]unix.EpollEvent, 256)
	lastWork := time.Now()
	for !s.stop.Load() {
		now := time.Now()
		s.due.Store(int64(now.Sub(s.made)))
		worked, next := s.turn(now)
		if !s.callOutsiders() {
			return false
		}
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
	return true
}

// turn does all work that needs no descriptor event. next is the earliest time at which a driver or timer wants to be
// called again; zero if none does.
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
	if at := s.timers.Next(); !at.IsZero() && (next.IsZero() || at.Before(next)) {
		next = at
	}
	return worked, next
}

// AddDriver adds a device. The caller is on the shard, or the shard has not started.
func (s *Shard) AddDriver(d verbs.Driver) {
	s.drivers = append(s.drivers, d)
	if p, ok := d.(verbs.Peeker); ok {
		s.spinner.peekers = append(s.spinner.peekers, p)
	}
}

// DropDriver undoes AddDriver. The caller is on the shard.
func (s *Shard) DropDriver(d verbs.Driver) {
	s.drivers = slices.DeleteFunc(s.drivers, func(o verbs.Driver) bool { return o == d })
	if p, ok := d.(verbs.Peeker); ok {
		s.spinner.peekers = slices.DeleteFunc(s.spinner.peekers, func(o verbs.Peeker) bool { return o == p })
	}
}

// Flush rings the doorbells for posted work requests.
func (s *Shard) Flush() {
	for _, d := range s.drivers {
		d.Flush()
	}
}

// pollCQs hands completions to their flows, from each queue at most wcTurn.
func (s *Shard) pollCQs() bool {
	worked := false
	for _, q := range s.cqs {
		worked = s.pollCQ(q, wcTurn) || worked
	}
	return worked
}

// pollCQ hands completions of a queue to their flows, until the queue is empty or most are taken.
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

// complete hands completions i to n-1 to their flows and returns where to go on after a panic.
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

// Collect takes in what the devices have now, in the middle of the work for one flow. It must not be called in
// [Completer.Complete], where it panics: it would overwrite the completions not yet handed over.
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
		if q.depth > 0 { // whatever exceeds its size has arrived since
			most = q.depth
		}
		s.pollCQ(q, most)
	}
}

// runPosted runs what has been posted so far.
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

// finishPosted runs what is posted after the loop has ended, once other callers are done.
func (s *Shard) finishPosted() {
	s.behind.Lock()
	s.runBehind()
}

// runBehind runs what is posted. The caller holds behind, which runBehind unlocks. It also runs what is posted
// meanwhile, even by the functions that it runs, unless another caller does.
func (s *Shard) runBehind() {
	run := func() {
		defer s.behind.Unlock()
		s.runPosted()
	}
	for run(); s.hasPost.Load() && s.behind.TryLock(); {
		run()
	}
}

// call calls fns from i on, and returns where to go on after a panic. Functions that work for a flow call WorksFor.
func (s *Shard) call(fns []func(), i int) (next int) {
	defer s.contain(&next)
	for next = i; next < len(fns); next++ {
		s.WorksFor(nil)
		fns[next]()
	}
	return next
}

// runAgain continues the members passed to Later.
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

// pumpFrom continues the members of list from i on and returns where to go on after a panic.
func (s *Shard) pumpFrom(list []Servicer, i int) (next int) {
	defer s.contain(&next)
	for next = i; next < len(list); next++ {
		m := list[next]
		s.about = m.Owner()
		m.Service()
	}
	return next
}

// wait sleeps until a descriptor, a doorbell or a driver's time wakes the loop. Drivers are armed only around a real
// sleep: a peer that finds them not armed saves the doorbell.
func (s *Shard) wait(events []unix.EpollEvent, now, next time.Time, worked, busy bool) int {
	if worked || len(s.again) > 0 || s.bulk.len() > 0 || len(s.outsiders) > 0 {
		return s.poll(events, 0, true)
	}
	if s.streams() {
		rawNap(napFor)
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
	s.due.Store(int64(now.Add(limit).Sub(s.made))) // before arm looks for posts: see expect
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

// poll is one epoll_pwait, raw or as an ordinary system call. An interrupted wait returns no event; the loop then goes
// through ordinary Go calls, where the runtime can preempt it.
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

// arm prepares for sleep. It returns false if something has been posted, or if a driver has work.
func (s *Shard) arm() bool {
	s.asleep.Store(true) // before looking: Post queues, then reads asleep
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

// Halt ends the loop, waits for that and runs what is still posted. Devices may use the poller until CloseFDs.
func (s *Shard) Halt() {
	s.stop.Store(true)
	s.Post(func() {})
	for begun := s.begun.Load(); begun; {
		select {
		case <-s.done:
			begun = false
		case <-time.After(BeatInterval): // the heart may not beat any more
			s.relieve(time.Now())
		}
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

// CloseFDs closes the descriptors of a shard that has halted.
func (s *Shard) CloseFDs() {
	_ = unix.Close(s.kick)
	_ = unix.Close(s.epfd)
}
