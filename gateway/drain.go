package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/handover"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// errDrained stops the daemon's loops after a drain.
var errDrained = errors.New("drained")

// awaitDrain returns errDrained when a drain is over.
func (g *gateway) awaitDrain(ctx context.Context) error {
	if !g.drainer.Await(ctx, g.left) {
		return nil
	}
	g.log.Info("drained", "reset", g.drainer.Info().Flows)
	g.drainer.Finish()
	return errDrained
}

// left returns what a drain waits for. It looks at the namespace's sockets only when no
// connection is carried any more. If they cannot be read, it reports at least one.
func (g *gateway) left() (flows, lingering int, now time.Time) {
	now = time.Now()
	e := g.engine()
	if flows = e.count(); flows > 0 || e == nil {
		return flows, 0, now
	}
	n, err := g.steer.Lingering()
	if err != nil {
		n = max(n, 1)
	}
	if was := e.blind.Swap(err != nil); err != nil && !was {
		g.log.Warn("sockets that linger are not known", "error", err)
	}
	return 0, n, now
}

// Drain implements admin.Control. It abandons a takeover in progress.
func (g *gateway) Drain(timeout time.Duration) (<-chan struct{}, error) {
	return g.drainer.Finished(), g.incumbent.End(func() error {
		g.reloading.Lock()
		defer g.reloading.Unlock()
		if err := g.refuseDrained(true); err != nil {
			return err
		}
		g.beginDrain(timeout)
		return nil
	})
}

// beginDrain begins a drain once new connections are refused. The caller holds reloading. A
// timeout of 0 means the configured one.
func (g *gateway) beginDrain(timeout time.Duration) {
	if timeout <= 0 {
		timeout = g.cfg.Limits.DrainTimeout
	}
	g.engine().datagrams().Quiesce(negotiate.ReasonDrained)
	g.host.promotion.Serve(false)
	now, flows := time.Now(), g.engine().count()
	g.log.Info("draining", "timeout", timeout, "flows", flows)
	g.drainer.Begin(flows, now, now.Add(timeout))
	g.engine().settleBeyond()
}

// Leave implements handover.Gateway. From here on the successor represents the service.
func (g *gateway) Leave(commit func(off bool) error, main int) error {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	if err := g.refuseDrained(true); err != nil {
		return err
	}
	if err := commit(g.off.Load()); err != nil {
		return errors.Join(fmt.Errorf("leave: %w", err), g.refuseDrained(false))
	}
	g.renewal.Manager.HandOver(main) // before the drain ends, which may be at once
	g.beginDrain(0)
	return nil
}

// refuseDrained makes new connections native, or stops doing so.
func (g *gateway) refuseDrained(refuse bool) error {
	return g.refusals.Change(func(r *peers.Refusal) { r.Drained = refuse })
}

func (g *gateway) Draining() *report.DrainInfo { return g.drainer.Info() }

// errNoTakeover is returned by a gateway whose host does not allow a second one.
var errNoTakeover = errors.New("no other gateway can take over here")

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
