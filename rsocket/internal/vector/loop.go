package vector

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

const (
	// pollBatches bounds the batches of completions in one turn, so that their results are flushed before more are polled.
	pollBatches = 16
	// leaveTurns is how many turns a goroutine drives a busy vector before the vector's own goroutine takes over.
	leaveTurns = 4
	// guardTime is how long an attended vector leaves doorbells unarmed and acknowledgements pending, to be sent with an
	// answer.
	guardTime = 200 * time.Microsecond
)

// Member owns a queue pair of a vector. The token holder calls both methods.
type Member interface {
	// Complete handles one completion of the queue pair.
	Complete(wc *verbs.WC)
	// Service does the work that other goroutines have requested; see Vector.Wants.
	Service()
}

// Node is a member's place in the list of those that want service.
type Node struct {
	Member Member
	next   *Node
	queued atomic.Bool
}

// Vector is one completion vector of a device with its driver, completion queue and members.
//
// The goroutine that holds the token drives the vector. On the data path no goroutine waits for the token: one that
// does not get it leaves its work in a list (Wants). That work is not lost, because the holder looks at the list again
// after letting go. A holder leaves in one of two ways:
//
//   - Leave: nothing is left to do and the driver is armed, so that arriving work wakes the vector's goroutine;
//   - stay: the only connection is in a dialog of requests and answers, so a goroutine will be back in a moment; if
//     not, the vector's goroutine looks after guardTime.
type Vector struct {
	cfg     Config
	members atomic.Int64 // for choosing a vector

	_        [64]byte // avoid false sharing: every user of the vector writes the words below
	token    sync.Mutex
	wanting  atomic.Pointer[Node]
	woken    atomic.Bool // something arrived after the driver was armed
	spinning atomic.Bool // a goroutine polls
	_        [64]byte

	backoff backoff

	// Owned by the holder of the token.
	driver   verbs.Driver
	CQ       verbs.CQ
	byQPN    map[uint32]Member
	closed   bool
	armed    bool
	attended bool // see stay
	// Drained reports that the last poll emptied the completion queue, since the token was taken.
	Drained bool
	next    time.Time // when Progress must be called again
	wakeAt  time.Time // when the timer fires
	wcs     [32]verbs.WC

	sleeper

	gone chan struct{} // closed after the last turn
}

// Config is common to the vectors of a device.
type Config struct {
	// Dev is the device. No default.
	Dev verbs.Device
	// Depth is the depth of the completion queue, limited by the device. No default.
	Depth int
	// Polling is how long a waiting goroutine polls. 0: it does not poll.
	Polling time.Duration
	// CQErrors counts failed polls of the completion queue. No default.
	CQErrors *atomic.Uint64
}

// New opens a vector of the device. The caller must run its goroutine, Run.
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

// Load returns the number of members.
func (v *Vector) Load() int64 { return v.members.Load() }

// TryEnter takes the token if it is free.
func (v *Vector) TryEnter() bool { return v.token.TryLock() && v.entered() }

// entered begins to drive the vector with the token that was taken. It returns false, without the token, if the vector
// is closed.
func (v *Vector) entered() bool {
	if v.closed {
		v.token.Unlock()
		return false
	}
	v.Drained = false
	if v.armed {
		v.armed = false
		v.driver.Disarm()
	}
	return true
}

// Do runs f with the token held, for which it waits. The caller must not hold the token.
func (v *Vector) Do(f func()) error {
	v.token.Lock()
	if !v.entered() {
		return verbs.ErrClosed
	}
	f()
	v.Leave()
	return nil
}

// Try is Do for a function that can fail.
func (v *Vector) Try(f func() error) (err error) {
	if doErr := v.Do(func() { err = f() }); doErr != nil {
		return doErr
	}
	return err
}

// release gives up the token without arming the driver.
func (v *Vector) release() { v.token.Unlock() }

// turn is one round: arrivals, completions, requested work, doorbells.
func (v *Vector) turn() bool {
	worked := v.progress(time.Now())
	if v.serve() {
		worked = true
	}
	v.driver.Flush()
	return worked
}

// progress is a turn without requested work and doorbells.
func (v *Vector) progress(now time.Time) bool {
	if v.woken.Load() {
		v.woken.Store(false) // clear before looking, so that no later arrival is missed
		v.attended = false   // the vector's goroutine found the token held, and sleeps again
	}
	worked, next := v.driver.Progress(now)
	v.next = next
	return v.poll() || worked
}

// poll passes completions to their members.
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

// drainTurns bounds Drain if the peers never stop sending.
const drainTurns = 1000

// Drain polls until nothing is left: everything that arrived before the call has been handled.
func (v *Vector) Drain() {
	for range drainTurns {
		worked := v.progress(time.Now())
		v.driver.Flush()
		if !worked {
			return
		}
	}
}

// Wants requests a call of the member's Service. Any goroutine may call it; it must be followed by Kick.
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

// serve does the requested work.
func (v *Vector) serve() bool {
	if v.wanting.Load() == nil {
		return false
	}
	for n := v.wanting.Swap(nil); n != nil; {
		next := n.next
		n.next = nil
		n.queued.Store(false) // clear before Service, so that later requests are queued again
		n.Member.Service()
		n = next
	}
	return true
}

// wanted reports whether a token holder must look again after letting go.
func (v *Vector) wanted() bool { return v.wanting.Load() != nil || v.woken.Load() }

// Kick gets requested work done, by the caller or by the token holder.
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

// Leave drives the vector until it may sleep, and gives up the token. If that takes long, the vector's goroutine
// continues.
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

// stay gives up the token without arming the driver: the goroutine that has just received what it polled for will read
// or write again in a moment, and its answer will carry what is waiting to be flushed now.
func (v *Vector) stay() {
	if v.members.Load() != 1 { // others would have to wait
		v.attended = false
		v.Leave()
		return
	}
	v.attended = true
	now := time.Now() // not an older time, or a timer that has fired since would never be set again
	if guard := now.Add(guardTime); !v.wakeAt.After(now) || v.wakeAt.After(guard) {
		v.wakeAt = guard
		v.setTimer(guardTime)
	}
	v.release()
	if v.wanted() {
		v.Kick()
	}
}

// arm makes arriving work wake the vector's goroutine; it returns false if work has arrived already.
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
		v.woken.Store(true) // tells the token holder to look: it may have armed the driver already
		if v.TryEnter() {
			v.attended = false
			v.Leave()
		}
		runtime.Gosched() // a busy vector is roused again immediately: first let the goroutines run that it served
	}
	v.token.Lock()
	defer v.token.Unlock()
	v.closed = true
	v.serve()
	v.driver.Flush()
	_ = v.CQ.Close()
	_ = v.driver.Close()
	v.close()
}

// Stop ends the vector and its goroutine. All members must have been removed.
func (v *Vector) Stop() {
	v.stopping.Store(true)
	v.rouse()
	<-v.gone
}

// Add adds a member. The caller holds the token.
func (v *Vector) Add(qpn uint32, m Member) {
	v.byQPN[qpn] = m
	v.attended = false
	v.members.Add(1)
}

// Remove removes a member whose queue pair was just closed. The caller holds the token. It first handles queued
// completions, which must not be taken for those of the next queue pair with that number.
func (v *Vector) Remove(qpn uint32) {
	if v.byQPN[qpn] == nil {
		return
	}
	for v.poll() {
	}
	delete(v.byQPN, qpn)
	v.members.Add(-1)
}
