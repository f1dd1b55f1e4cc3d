package hw

import (
	"fmt"
	"sync"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// pd is a protection domain.
type pd struct {
	dev *Device
	h   ibv.PD

	mu     sync.Mutex // guards everything below
	users  int        // regions, queue pairs, SRQs and address handles
	closed bool
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

// hold is called before something is made in the domain, release when that is
// closed. What is in a domain keeps the device through it.
func (p *pd) hold() error {
	if p.dev.isClosed() {
		return verbs.ErrClosed
	}
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

// Close implements verbs.PD.
func (p *pd) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users > 0 {
		return fmt.Errorf("protection domain of %d objects: %w", p.users, verbs.ErrBusy)
	}
	if p.closed {
		return nil
	}
	if err := p.dev.ctx.DeallocPD(p.h); err != nil {
		return failure("free protection domain", err)
	}
	p.closed = true
	p.dev.use.pds.Add(-1)
	return p.dev.release()
}
