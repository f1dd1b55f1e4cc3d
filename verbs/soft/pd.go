package soft

import (
	"fmt"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
)

// pd is a protection domain: keys work only on queue pairs of their domain.
type pd struct {
	dev   *Device
	users atomic.Int64 // regions, queue pairs, SRQs and address handles
}

var _ verbs.PD = (*pd)(nil)

// CreateQP implements verbs.PD.
func (p *pd) CreateQP(attr *verbs.QPInitAttr) (verbs.QP, error) {
	q, err := newQP(p, attr)
	if err != nil {
		return nil, err
	}
	return q, nil
}

// Close implements verbs.PD.
func (p *pd) Close() error {
	if n := p.users.Load(); n > 0 {
		return fmt.Errorf("protection domain of %d objects: %w", n, verbs.ErrBusy)
	}
	return nil
}
