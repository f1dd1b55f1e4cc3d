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

// peerAccess is the access that a queue pair grants its peer.
const peerAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite

// domain is the protection domain of a stack: its memory and the queue pairs kept for reuse.
type domain struct {
	stack *Stack
	pd    verbs.PD
	arena *rmb.Arena

	mu     sync.Mutex // guards everything below
	warm   []warmQP   // oldest first
	maps   []*IOMap   // mappings still open when their connection ended
	closed bool
}

// warmQP is a queue pair without a connection.
type warmQP struct {
	qp    verbs.QP
	vec   *vector.Vector
	size  verbs.QPCap
	after time.Time // earliest time of reuse
}

// reuseDelay is how long a queue pair that was connected rests before reuse. A communication manager that still
// believes the queue pair connected takes a new request from it as a sign that the peer has lost its state, and the
// network may hold packets of the old connection for as long (IBTA vol. 1, 12.9.8.4, TimeWait). The Linux kernel's
// TimeWait lasts up to some seconds.
const reuseDelay = 5 * time.Second

// newDomain allocates a protection domain of the device. If memory can be registered in parts, each connection has its
// own keys, so that one peer cannot reach the memory of another.
func (s *Stack) newDomain() (*domain, error) {
	pd, err := s.dev.AllocPD()
	if err != nil {
		return nil, fmt.Errorf("protection domain: %w", err)
	}
	d := &domain{stack: s, pd: pd}
	if s.dev.Attr().RemoteRegMR {
		d.arena = s.pool.IsolatedArena(pd)
	} else {
		d.arena = s.pool.Arena(pd)
	}
	return d, nil
}

// queuePair returns a queue pair in INIT, a used one if one is ready.
func (d *domain) queuePair(vec *vector.Vector, size verbs.QPCap) (verbs.QP, error) {
	if qp := d.takeWarm(vec, size); qp != nil {
		return qp, nil
	}
	d.stack.counters.qpsMade.Add(1)
	return d.createQP(vec, size)
}

func (d *domain) createQP(vec *vector.Vector, size verbs.QPCap) (verbs.QP, error) {
	attr := verbs.QPInitAttr{SendCQ: vec.CQ, RecvCQ: vec.CQ, Cap: size, Type: verbs.QPTRC}
	qp, err := d.pd.CreateQP(&attr)
	if err != nil {
		return nil, fmt.Errorf("queue pair: %w", err)
	}
	if err := verbs.Init(qp, peerAccess); err != nil {
		return nil, errors.Join(fmt.Errorf("queue pair: %w", err), qp.Close())
	}
	return qp, nil
}

// takeWarm returns a rested queue pair in INIT, or nil.
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

// giveBack keeps a queue pair in RESET for reuse if that is possible and there are not too many; otherwise it closes
// it.
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

// warmLimit is the total number of queue pairs kept.
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

// keepMaps keeps the mappings of a connection that has ended, because a program may never close them. If the domain is
// already closed, they are freed immediately.
func (d *domain) keepMaps(maps []*IOMap) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		for _, m := range maps {
			_ = m.free()
		}
		return
	}
	d.maps = slices.DeleteFunc(append(d.maps, maps...), func(m *IOMap) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.closed
	})
}

// awaitUsers waits for a MapIO that has learned of its connection's end but not freed its memory yet.
func (d *domain) awaitUsers() {
	for deadline := time.Now().Add(closeTimeout); d.arena.Stats().Regions > 0 && time.Now().Before(deadline); {
		time.Sleep(100 * time.Microsecond)
	}
}

// close returns everything to the device. It closes the queue pairs with the vector's token held.
func (d *domain) close() error {
	d.mu.Lock()
	d.closed = true
	warm := d.warm
	d.warm = nil
	maps := d.maps
	d.mu.Unlock()
	var errs []error
	for _, m := range maps {
		errs = append(errs, m.free())
	}
	for _, w := range warm {
		errs = append(errs, w.vec.Try(w.qp.Close))
	}
	d.awaitUsers()
	return errors.Join(append(errs, d.arena.Close(), d.pd.Close())...)
}
