package hw

import (
	"fmt"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// ah is an address handle. Providers use the library's handle when a datagram is sent, so it lives until the last work
// request with it is done.
type ah struct {
	pd     *pd
	h      ibv.AH
	closed atomic.Bool
	refs   atomic.Int32 // one per work request, and one until Close
}

var _ verbs.AH = (*ah)(nil)

func (p *pd) CreateAH(attr verbs.AHAttr) (verbs.AH, error) {
	if err := p.dev.checkAH(&attr); err != nil {
		return nil, err
	}
	if err := p.hold(); err != nil {
		return nil, err
	}
	onPort := attr
	onPort.Port = p.dev.cfg.Port
	h, err := p.dev.ctx.CreateAH(p.h, &onPort)
	if err != nil {
		p.users.Release()
		return nil, failure("address handle", err)
	}
	p.dev.use.ahs.Add(1)
	a := &ah{pd: p, h: h}
	a.refs.Store(1)
	return a, nil
}

// checkAH refuses addresses that providers accept but cannot send to.
func (d *Device) checkAH(a *verbs.AHAttr) error {
	if a.Port > 1 || a.FlowLabel >= 1<<20 {
		return fmt.Errorf("address of port %d, flow label %#x: %w", a.Port, a.FlowLabel, verbs.ErrInvalid)
	}
	if a.DGID == (verbs.GID{}) {
		if d.linkLayer == verbs.LinkLayerInfiniBand && a.DLID != 0 {
			return nil
		}
		return fmt.Errorf("address without GID: %w", verbs.ErrInvalid)
	}
	if !d.hasGID(int(a.SGIDIndex)) {
		return fmt.Errorf("SGID index %d: %w", a.SGIDIndex, verbs.ErrInvalid)
	}
	return nil
}

// hasGID reports whether an entry of the GID table is used. It caches the table, which need not be read for each
// connection.
func (d *Device) hasGID(i int) bool {
	taken := func(table []verbs.GIDEntry) bool { return i < len(table) && !table[i].Empty() }
	if table := d.gids.Load(); table != nil && taken(*table) {
		return true
	}
	p, err := d.queryPort()
	return err == nil && taken(p.GIDs)
}

func (a *ah) Close() error {
	if !a.closed.Swap(true) {
		a.unref()
	}
	return nil
}

// ref keeps the handle for a work request; it returns false if the handle is gone.
func (a *ah) ref() bool {
	for {
		n := a.refs.Load()
		if n == 0 || a.closed.Load() {
			return false
		}
		if a.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// unref ends one use. The handle keeps the domain in use.
func (a *ah) unref() {
	if a.refs.Add(-1) > 0 {
		return
	}
	d := a.pd.dev
	if err := d.ctx.DestroyAH(a.h); err != nil {
		d.cfg.Logger.Warn("destroy address handle", "device", d.Name(), "error", err)
	}
	d.use.ahs.Add(-1)
	a.pd.users.Release()
}
