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

// domain is the protection domain of a stack: its memory and the queue pairs that are kept ready.
type domain struct {
	stack *Stack
	pd    verbs.PD
	arena *rmb.Arena

	mu     sync.Mutex // guards everything below
	warm   []warmQP   // oldest first
	maps   []*IOMap   // that were open when their connection ended
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

// newDomain takes a domain of the device into use. Where memory can be registered in parts, each connection has keys of
// its own: of two peers none reaches the memory of the other.
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
	qp, err := d.pd.CreateQP(&attr)
	if err != nil {
		return nil, fmt.Errorf("queue pair: %w", err)
	}
	if err := verbs.Init(qp, peerAccess); err != nil {
		return nil, errors.Join(fmt.Errorf("queue pair: %w", err), qp.Close())
	}
	return qp, nil
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

// keepMaps remembers the mappings of a connection that has ended: a program may never close them. They end at once if the domain is
// closed already.
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
