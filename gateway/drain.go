package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// errDrained ends the daemon's loops after a drain.
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

// left counts what a drain waits for. The namespace's sockets are only looked at
// when no connection is carried any more. While they are not known, one lingers.
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

// Drain implements admin.Control. A takeover that is under way is lost.
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

// beginDrain begins a drain when new connections are refused; the caller holds reloading.
// A timeout of 0 is that of the configuration.
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

// Leave implements handover.Gateway. From here on the successor speaks for the service.
func (g *gateway) Leave(commit func(off bool) error, main int) error {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	if err := g.refuseDrained(true); err != nil {
		return err
	}
	if err := commit(g.off.Load()); err != nil {
		return errors.Join(fmt.Errorf("leave: %w", err), g.refuseDrained(false))
	}
	g.renewal.Manager.HandOver(main) // before the end of the drain, which may come at once
	g.beginDrain(0)
	return nil
}

// refuseDrained leaves new connections native, or ends that.
func (g *gateway) refuseDrained(refuse bool) error {
	return g.refusals.Change(func(r *peers.Refusal) { r.Drained = refuse })
}

// Draining implements admin.Control.
func (g *gateway) Draining() *report.DrainInfo { return g.drainer.Info() }
