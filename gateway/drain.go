package gateway

import (
	"context"
	"errors"
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

// Drain implements admin.Control.
func (g *gateway) Drain(timeout time.Duration) (<-chan struct{}, error) {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	return g.drain(timeout)
}

// drain is Drain for the owner of reloading.
func (g *gateway) drain(timeout time.Duration) (<-chan struct{}, error) {
	if timeout <= 0 {
		timeout = g.cfg.Limits.DrainTimeout
	}
	if err := g.refuseDrained(); err != nil {
		return nil, err
	}
	now, flows := time.Now(), g.engine().count()
	g.log.Info("draining", "timeout", timeout, "flows", flows)
	g.drainer.Begin(flows, now, now.Add(timeout))
	return g.drainer.Finished(), nil
}

// refuseDrained leaves new connections and datagrams native.
func (g *gateway) refuseDrained() error {
	if err := g.refusals.Change(func(r *peers.Refusal) { r.Drained = true }); err != nil {
		return err
	}
	g.engine().datagrams().Quiesce(negotiate.ReasonDrained)
	g.host.promotion.Serve(false)
	return nil
}

// Draining implements admin.Control.
func (g *gateway) Draining() *report.DrainInfo { return g.drainer.Info() }
