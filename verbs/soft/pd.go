package soft

import (
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/internal/queues"
)

// pd is a protection domain: keys work only on queue pairs of their domain.
type pd struct {
	dev   *Device
	users queues.Users
}

var _ verbs.PD = (*pd)(nil)

func (p *pd) CreateQP(attr *verbs.QPInitAttr) (verbs.QP, error) {
	if err := p.users.Hold(); err != nil {
		return nil, err
	}
	q, err := newQP(p, attr)
	if err != nil {
		p.users.Release()
		return nil, err
	}
	return q, nil
}

func (p *pd) Close() error { return p.users.Close(func() error { return nil }) }
