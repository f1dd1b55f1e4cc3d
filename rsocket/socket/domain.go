package socket

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/smcgw/smcgw/rsocket/internal/vector"

	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
)

// peerAccess is what a queue pair grants its peer.
const peerAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite

// domain is a protection domain in use: its memory and the queue pairs that are kept ready.
type domain struct {
	stack *Stack
	pd    verbs.PD
	own   bool // the stack made it
	arena *rmb.Arena

	users int // connections and open mappings; guarded by Stack.mu

	mu     sync.Mutex     // guards everything below
	warm   []warmQP       // oldest first
	kept   []*Conn        // over, but the peer may still write
	maps   []*IOMap       // that were open when their connection ended
	shared []*sharedQueue // by vector
	closed bool
}

// warmQP is a queue pair without a connection.
type warmQP struct {
	qp    verbs.QP
	vec   *vector.Vector
	size  verbs.QPCap
	after time.Time // not before then
}

// reuseDelay is how long a queue pair that was connected rests. A communication manager takes a request of a queue pair
// that it believes connected for that of a peer that has forgotten everything, and the network may hold packets of the
// old connection for as long (IBTA vol. 1, 12.9.8.4, TimeWait). Those of the Linux kernel last up to some seconds.
const reuseDelay = 5 * time.Second

// newDomainLocked takes a domain into use. Where memory can be registered in parts, each connection has keys of its own: of
// two peers none reaches the memory of the other. Elsewhere the domain itself belongs to one peer.
func (s *Stack) newDomainLocked(pd verbs.PD, own bool) *domain {
	d := &domain{stack: s, pd: pd, own: own, shared: make([]*sharedQueue, len(s.vectors))}
	if s.dev.Attr().RemoteRegMR {
		d.arena = s.pool.IsolatedArena(pd)
	} else {
		d.arena = s.pool.Arena(pd)
	}
	s.domains[pd] = d
	return d
}

// ErrNoDomain is a connection without a protection domain on a device that has none of its own.
var ErrNoDomain = fmt.Errorf("no protection domain: %w", verbs.ErrInvalid)

// domainOf finds the domain of a connection and counts it as a user.
func (s *Stack) domainOf(pd verbs.PD) (*domain, error) {
	if pd == nil {
		if s.home == nil {
			return nil, ErrNoDomain
		}
		pd = s.home.pd
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrStackClosed
	}
	d := s.domains[pd]
	if d == nil {
		d = s.newDomainLocked(pd, false)
	}
	d.users++
	return d, nil
}

// retain counts one more user of a domain in use, false when it is gone.
func (d *domain) retain() bool {
	s := d.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.domains[d.pd] != d {
		return false
	}
	d.users++
	return true
}

// unuse ends a use. A domain that only connections named goes with the last of them and of their mappings.
func (d *domain) unuse() error {
	s := d.stack
	s.mu.Lock()
	d.users--
	last := d.users == 0 && d != s.home && !s.closed
	if last {
		delete(s.domains, d.pd)
	}
	s.mu.Unlock()
	if last {
		return d.close()
	}
	return nil
}

// queuePair returns a queue pair in INIT, one that was used before if one is ready.
func (d *domain) queuePair(vec *vector.Vector, size verbs.QPCap) (verbs.QP, error) {
	if qp := d.takeWarm(vec, size); qp != nil {
		return qp, nil
	}
	d.stack.counters.qpsMade.Add(1)
	return d.createQP(vec, size)
}

func (d *domain) createQP(vec *vector.Vector, size verbs.QPCap) (verbs.QP, error) {
	attr := verbs.QPInitAttr{SendCQ: vec.CQ, RecvCQ: vec.CQ, Cap: size, Type: verbs.QPTRC}
	q, err := d.queue(vec)
	if err != nil {
		return nil, err
	}
	if q != nil {
		attr.SRQ = q.srq
	}
	qp, err := d.pd.CreateQP(&attr)
	if err != nil {
		return nil, fmt.Errorf("queue pair: %w", err)
	}
	if err := verbs.Init(qp, peerAccess); err != nil {
		return nil, errors.Join(fmt.Errorf("queue pair: %w", err), qp.Close())
	}
	return qp, nil
}

// queue returns the shared receive queue of a vector, nil where there are none.
func (d *domain) queue(vec *vector.Vector) (*sharedQueue, error) {
	if d.stack.cfg.NoSRQ || d.stack.dev.Attr().Ops&verbs.OpSRQ == 0 {
		return nil, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shared[vec.Index] == nil && !d.closed {
		q, err := newSharedQueue(d, vec)
		if err != nil {
			return nil, err
		}
		d.shared[vec.Index] = q
	}
	return d.shared[vec.Index], nil
}

// takeWarm returns a queue pair that has rested, brought to INIT, or nil.
func (d *domain) takeWarm(vec *vector.Vector, size verbs.QPCap) verbs.QP {
	now := time.Now()
	d.mu.Lock()
	i := slices.IndexFunc(d.warm, func(w warmQP) bool { return w.vec == vec && w.size == size && !now.Before(w.after) })
	if i < 0 {
		d.mu.Unlock()
		return nil
	}
	w := d.warm[i]
	d.warm = slices.Delete(d.warm, i, i+1)
	d.mu.Unlock()
	var err error
	if doErr := vec.Do(func() {
		if err = verbs.Init(w.qp, peerAccess); err != nil {
			_ = w.qp.Close()
		}
	}); doErr != nil || err != nil {
		return nil
	}
	d.stack.counters.qpsReused.Add(1)
	return w.qp
}

// giveBack takes a queue pair in RESET, to be used again if that is possible and there are not too many already.
func (d *domain) giveBack(w warmQP, reuse bool) {
	if d.stack.manager != nil {
		w.after = time.Now().Add(reuseDelay)
	}
	d.mu.Lock()
	keep := reuse && !d.closed && len(d.warm) < d.warmLimit()
	if keep {
		d.warm = append(d.warm, w)
	}
	d.mu.Unlock()
	if !keep {
		_ = w.vec.Do(func() { _ = w.qp.Close() })
	}
}

// warmLimit is how many queue pairs are kept in all.
func (d *domain) warmLimit() int {
	n := d.stack.cfg.Warm
	if n == 0 {
		n = defaultWarm
	}
	return max(0, n) * len(d.stack.vectors)
}

func (d *domain) warmCount() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.warm)
}

// keep leaves the memory of a connection alone whose peer did not say that it stopped writing. It goes with the domain:
// the device uses the memory of a closed region again only when no peer can reach it.
func (d *domain) keep(c *Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kept = append(d.kept, c)
}

// keepMaps remembers mappings that a program may never close, and ends them if the domain is closed already.
func (d *domain) keepMaps(maps []*IOMap) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		for _, m := range maps {
			_ = m.free(true, true)
		}
		return
	}
	d.maps = slices.DeleteFunc(append(d.maps, maps...), func(m *IOMap) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.closed && m.safe
	})
}

// awaitUsers waits for a MapIO that was told of the end of its connection and still has memory.
func (d *domain) awaitUsers() {
	for deadline := time.Now().Add(closeTimeout); d.arena.Stats().Regions > 0 && time.Now().Before(deadline); {
		time.Sleep(100 * time.Microsecond)
	}
}

// close returns everything to the device; the holder of the vector's token closes the queue pairs.
func (d *domain) close() error {
	d.mu.Lock()
	d.closed = true
	warm := d.warm
	d.warm = nil
	kept := d.kept
	maps := d.maps
	d.mu.Unlock()
	var errs []error
	for _, c := range kept {
		errs = append(errs, c.free())
	}
	for _, m := range maps {
		errs = append(errs, m.free(true, true))
	}
	for _, w := range warm {
		errs = append(errs, w.vec.Try(w.qp.Close))
	}
	for _, q := range d.shared {
		if q != nil {
			errs = append(errs, q.vec.Try(q.srq.Close))
		}
	}
	d.awaitUsers()
	errs = append(errs, d.arena.Close())
	if d.own {
		errs = append(errs, d.pd.Close())
	}
	return errors.Join(errs...)
}
