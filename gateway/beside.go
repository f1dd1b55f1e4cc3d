package gateway

import (
	"errors"
	"fmt"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/handover"
	"github.com/smcgw/smcgw/negotiate"
)

// errNoTakeover is returned by a gateway whose host does not allow a second one.
var errNoTakeover = errors.New("nobody can take over here")

// Neighbour implements handover.Gateway. If another takeover would make three gateways, or if
// this one is draining, it returns handover.ErrDraining together with the neighbour.
func (g *gateway) Neighbour() (ebpf.Neighbour, error) {
	if g.host.Beside == nil {
		return ebpf.Neighbour{}, errNoTakeover
	}
	n, err := g.host.Beside.Neighbour()
	if err == nil && (g.host.Beside.HasNeighbour() || g.drainer.Draining()) {
		err = handover.ErrDraining
	}
	return n, err
}

// Yield implements handover.Gateway.
func (g *gateway) Yield() error {
	if err := g.host.Beside.Retire(); err != nil {
		return err
	}
	e := g.engine()
	if e != nil {
		e.yieldDatagrams()
	}
	g.host.promotion.Serve(false)
	for _, x := range carriersOf[carrier.Exclusive](e) {
		if err := x.GiveUp(); err != nil {
			return fmt.Errorf("give up device: %w", err)
		}
	}
	return nil
}

// TakeBack implements handover.Gateway.
func (g *gateway) TakeBack() error {
	var errs []error
	e := g.engine()
	for _, x := range carriersOf[carrier.Exclusive](e) {
		errs = append(errs, x.Reclaim())
	}
	if e != nil {
		e.takeBackDatagrams()
	}
	g.servePromotion()
	return errors.Join(append(errs, g.Activate())...)
}

// Activate lets new connections in.
func (g *gateway) Activate() error { return g.host.Beside.Activate() }

// carriersOf returns the carriers of an engine that are a T; none if the engine is nil.
func carriersOf[T any](e *engine) (list []T) {
	if e == nil {
		return nil
	}
	for _, prov := range e.env.Providers {
		if x, ok := prov.(T); ok {
			list = append(list, x)
		}
	}
	return list
}

// leaveCarrier stops the use of a device's links: connections they carry continue over the
// relay, and handshakes may finish first, within their own deadlines. With hard, what is left
// falls back or is reset.
func (e *engine) leaveCarrier(kind negotiate.CarrierKind, uses func(*carrier.Link) bool, hard bool) {
	for _, f := range e.all() {
		f.LeaveDevice(kind, uses, hard)
	}
	e.opening.Lock()
	e.beyond.LeaveDevice(kind, uses)
	e.opening.Unlock()
	e.catchUp()
}
