package vector

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

const (
	// pollBatches bounds the completions of one turn, so that what they lead to is flushed before more are taken.
	pollBatches = 16
	// leaveTurns is how many turns a goroutine drives a busy vector before the vector's own takes over, and others run.
	leaveTurns = 4
	// guardTime is how long a vector that is attended goes without doorbells, and with acknowledgements that wait for an
	// answer to travel with.
	guardTime = 200 * time.Microsecond
)

// Member is something that owns a queue pair of a vector. The holder of the vector's token calls both methods.
type Member interface {
	// Complete handles one completion of the queue pair.
	Complete(wc *verbs.WC)
	// Service does what other goroutines have left to do; see Vector.Wants.
	Service()
}

// Node is a member's place in the list of those that want service.
type Node struct {
	Member Member
	next   *Node
	queued atomic.Bool
}

// Vector is one completion vector of a device and everything that belongs to it: driver, completion queue, members.
//
// The goroutine that holds the token drives the vector. No goroutine waits for the token: one that does not get it
// leaves the work in a list (Wants, Do). The work is done then, because the holder looks at the list again after
// letting go. A holder leaves in one of two ways:
//
//   - Leave: nothing is left to do and the driver is armed, so that the goroutine of the vector wakes when work arrives;
//   - stay: the only connection is in the middle of questions and answers, so a goroutine will be back in a moment; if not,
//     the goroutine of the vector looks after guardTime.
type Vector struct {
	cfg     Config
	members atomic.Int64 // for the choice of a vector

	_        [64]byte // the words below are written by every user of the vector
	token    atomic.Bool
	wanting  atomic.Pointer[Node]
	hasJobs  atomic.Bool
	woken    atomic.Bool // something arrived after the driver was armed
	spinning atomic.Bool // a goroutine polls
	_        [64]byte

	backoff backoff

	// Owned by the holder of the token.
	driver   verbs.Driver
	CQ       verbs.CQ
	byQPN    map[uint32]Member
	armed    bool
	attended bool // see stay
	// Drained: the completion queue was empty when it was polled last, in this term of the token.
	Drained bool
	next    time.Time // when Progress wants to be called
	wakeAt  time.Time // what the timer is set to
	wcs     [32]verbs.WC

	sleeper

	mu     sync.Mutex // guards jobs and closed
	jobs   []job
	closed bool
	gone   chan struct{} // closed after the last turn
}

// Config is what the vectors of a device have in common.
type Config struct {
	// Dev is the device. No default.
	Dev verbs.Device
	// Depth is that of the completion queue, as far as the device has it. No default.
	Depth int
	// Polling is how long a goroutine that waits polls. 0: not at all.
	Polling time.Duration
	// CQErrors counts failed polls of the completion queue. No default.
	CQErrors *atomic.Uint64
}

// New opens a vector of the device, whose goroutine is run.
func New(cfg Config, index int) (*Vector, error) {
	v := &Vector{cfg: cfg, byQPN: map[uint32]Member{}, gone: make(chan struct{})}
	if err := v.open(); err != nil {
		return nil, err
	}
	var err error
	if v.driver, err = cfg.Dev.Drive(index, &v.sleeper); err != nil {
		v.close()
		return nil, err
	}
	if v.CQ, err = cfg.Dev.CreateCQ(verbs.CQAttr{Depth: min(cfg.Depth, cfg.Dev.Attr().MaxCQE), Vector: index}); err != nil {
		_ = v.driver.Close()
		v.close()
		return nil, err
	}
	return v, nil
}

// Load is how many members the vector has.
func (v *Vector) Load() int64 { return v.members.Load() }

// TryEnter takes the token if it is free.
func (v *Vector) TryEnter() bool {
	if v.token.Load() || !v.token.CompareAndSwap(false, true) {
		return false
	}
	v.Drained = false
	if v.armed {
		v.armed = false
		v.driver.Disarm()
	}
	return true
}

// release gives up the token for a moment.
func (v *Vector) release() { v.token.Store(false) }

// turn is one round: what arrived, what completed, what was left to do, doorbells.
func (v *Vector) turn() bool {
	worked := v.progress(time.Now())
	if v.serve() {
		worked = true
	}
	v.driver.Flush()
	return worked
}

// progress is a turn without what was left to do and without doorbells.
func (v *Vector) progress(now time.Time) bool {
	if v.woken.Load() {
		v.woken.Store(false) // before looking
		v.attended = false   // the vector's goroutine found the token held, and sleeps again
	}
	worked, next := v.driver.Progress(now)
	v.next = next
	return v.poll() || worked
}

// poll hands completions to their members.
func (v *Vector) poll() bool {
	v.Drained = false
	for i := range pollBatches {
		n, err := v.CQ.Poll(v.wcs[:])
		for j := range v.wcs[:n] {
			if m := v.byQPN[v.wcs[j].QPNum]; m != nil {
				m.Complete(&v.wcs[j])
			}
		}
		if err != nil {
			v.cfg.CQErrors.Add(1)
		}
		if n < len(v.wcs) {
			v.Drained = true
			return i > 0 || n > 0
		}
	}
	return true
}

// drainTurns bounds Drain where the peers never stop sending.
const drainTurns = 1000

// Drain polls until nothing is left: what arrived before now has been handled.
func (v *Vector) Drain() {
	for range drainTurns {
		worked := v.progress(time.Now())
		v.driver.Flush()
		if !worked {
			return
		}
	}
}

// Wants has the member's service called soon. Any goroutine may call it; it is followed by Kick.
func (v *Vector) Wants(n *Node) {
	if n.queued.Load() || !n.queued.CompareAndSwap(false, true) {
		return
	}
	for {
		head := v.wanting.Load()
		n.next = head
		if v.wanting.CompareAndSwap(head, n) {
			return
		}
	}
}

// serve does what was left to do.
func (v *Vector) serve() bool {
	worked := false
	if v.wanting.Load() != nil {
		for n := v.wanting.Swap(nil); n != nil; {
			next := n.next
			n.next = nil
			n.queued.Store(false) // before Service: what is left from now on queues again
			n.Member.Service()
			n = next
			worked = true
		}
	}
	if v.hasJobs.Load() {
		v.runJobs()
		worked = true
	}
	return worked
}

// wanted tells whether there is something that a holder of the token has to look at again after letting go.
func (v *Vector) wanted() bool { return v.wanting.Load() != nil || v.hasJobs.Load() || v.woken.Load() }

// Kick has what was left done: by the caller, or by the holder of the token.
func (v *Vector) Kick() {
	if !v.TryEnter() {
		return
	}
	if v.serve() { // before anything else: a caller may wait for it
		v.driver.Flush()
		if v.attended && !v.wanted() {
			v.stay()
			return
		}
	}
	v.Leave()
}

// Leave drives the vector until it may sleep, and gives up the token. Where that takes long the vector's goroutine goes on.
func (v *Vector) Leave() {
	for range leaveTurns {
		if v.turn() || !v.arm() {
			continue
		}
		v.release()
		if !v.wanted() || !v.TryEnter() {
			return
		}
	}
	v.release()
	v.rouse()
}

// stay gives up the token without arming the driver: the goroutine that has just got what it polled for will write or
// read again at once. What it is answered with then takes along what waits to be flushed now.
func (v *Vector) stay() {
	if v.members.Load() != 1 { // others would have to wait
		v.attended = false
		v.Leave()
		return
	}
	v.attended = true
	now := time.Now() // no earlier reading: a timer that has fired since, and was taken for something else, would never be set again
	if guard := now.Add(guardTime); !v.wakeAt.After(now) || v.wakeAt.After(guard) {
		v.wakeAt = guard
		v.setTimer(guardTime)
	}
	v.release()
	if v.wanted() {
		v.Kick()
	}
}

// arm makes arriving work wake the vector's goroutine; false means that there is some already.
func (v *Vector) arm() bool {
	if !v.driver.Arm() {
		return false
	}
	v.armed = true
	if !v.next.IsZero() && (v.wakeAt.IsZero() || v.next.Before(v.wakeAt) || !v.wakeAt.After(time.Now())) {
		v.wakeAt = v.next
		v.setTimer(time.Until(v.next))
	}
	return true
}

// Run is the vector's own goroutine: it sleeps until something arrives that no other goroutine polls for.
func (v *Vector) Run() {
	defer close(v.gone)
	for !v.stopping.Load() {
		v.sleep()
		v.woken.Store(true) // the holder of the token may have armed the driver before and looks no more
		if v.TryEnter() {
			v.attended = false
			v.Leave()
		}
		runtime.Gosched() // a busy vector is roused again at once: those that it has worked for have their turn
	}
	for !v.TryEnter() {
		time.Sleep(50 * time.Microsecond) // holders stay for microseconds
	}
	v.end()
}

// end gives the vector back; the token is never free again.
func (v *Vector) end() {
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
	v.drainJobs()
	_ = v.CQ.Close()
	_ = v.driver.Close()
	v.close()
}

// Stop ends the vector and its goroutine. Its members are gone.
func (v *Vector) Stop() {
	v.stopping.Store(true)
	v.rouse()
	<-v.gone
}

// Add makes a member known; the token is held.
func (v *Vector) Add(qpn uint32, m Member) {
	v.byQPN[qpn] = m
	v.attended = false
	v.members.Add(1)
}

// Remove forgets a member, whose queue pair was closed just now; the token is held. Completions that were queued are
// still the member's: they must not be taken for those of the next queue pair with that number.
func (v *Vector) Remove(qpn uint32) {
	if v.byQPN[qpn] == nil {
		return
	}
	for v.poll() {
	}
	delete(v.byQPN, qpn)
	v.members.Add(-1)
}
