package hw

import (
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
	"github.com/smcgw/smcgw/verbs/internal/queues"
)

// pd is a protection domain. Its objects keep the device open through it.
type pd struct {
	dev   *Device
	h     ibv.PD
	users queues.Users
}

var _ verbs.PD = (*pd)(nil)

// AllocPD implements verbs.Device.
func (d *Device) AllocPD() (verbs.PD, error) {
	if err := d.hold(); err != nil {
		return nil, err
	}
	h, err := d.ctx.AllocPD()
	if err != nil {
		_ = d.release()
		return nil, failure("protection domain", err)
	}
	d.use.pds.Add(1)
	return &pd{dev: d, h: h}, nil
}

// hold is called before an object is made in the domain.
func (p *pd) hold() error {
	if p.dev.isClosed() {
		return verbs.ErrClosed
	}
	return p.users.Hold()
}

func (p *pd) Close() error {
	return p.users.Close(func() error {
		if err := p.dev.ended("free protection domain", p.dev.ctx.DeallocPD(p.h)); err != nil {
			return err
		}
		p.dev.use.pds.Add(-1)
		return p.dev.release()
	})
}
