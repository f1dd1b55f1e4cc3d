package soft

import (
	"fmt"
	"sync"

	"github.com/smcgw/smcgw/verbs"
)

// pd is a protection domain: keys work only on queue pairs of their domain.
type pd struct {
	dev *Device

	mu     sync.Mutex // guards everything below
	users  int        // regions, queue pairs, SRQs and address handles
	closed bool
}

var _ verbs.PD = (*pd)(nil)

// hold is called before something is made in the domain, release when that
// is closed.
func (p *pd) hold() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return verbs.ErrClosed
	}
	p.users++
	return nil
}

func (p *pd) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users--
}

// CreateQP implements verbs.PD.
func (p *pd) CreateQP(attr *verbs.QPInitAttr) (verbs.QP, error) {
	if err := p.hold(); err != nil {
		return nil, err
	}
	q, err := newQP(p, attr)
	if err != nil {
		p.release()
		return nil, err
	}
	return q, nil
}

// Close implements verbs.PD.
func (p *pd) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users > 0 {
		return fmt.Errorf("protection domain of %d objects: %w", p.users, verbs.ErrBusy)
	}
	p.closed = true
	return nil
}
