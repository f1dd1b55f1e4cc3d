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

// domain is the protection domain of a stack: its memory.
type domain struct {
	pd    verbs.PD
	arena *rmb.Arena

	mu     sync.Mutex // guards everything below
	maps   []*IOMap   // mappings still open when their connection ended
	closed bool
}

// newDomain allocates a protection domain of the device. If memory can be registered in parts, each connection has its
// own keys, so that one peer cannot reach the memory of another.
func (s *Stack) newDomain() (*domain, error) {
	pd, err := s.dev.AllocPD()
	if err != nil {
		return nil, fmt.Errorf("protection domain: %w", err)
	}
	d := &domain{pd: pd}
	if s.dev.Attr().RemoteRegMR {
		d.arena = s.pool.IsolatedArena(pd)
	} else {
		d.arena = s.pool.Arena(pd)
	}
	return d, nil
}

// queuePair returns a new queue pair in INIT.
func (d *domain) queuePair(vec *vector.Vector, size verbs.QPCap) (verbs.QP, error) {
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

// close returns everything to the device.
func (d *domain) close() error {
	d.mu.Lock()
	d.closed = true
	maps := d.maps
	d.mu.Unlock()
	var errs []error
	for _, m := range maps {
		errs = append(errs, m.free())
	}
	d.awaitUsers()
	return errors.Join(append(errs, d.arena.Close(), d.pd.Close())...)
}
