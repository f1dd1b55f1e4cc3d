package gateway

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/negotiate"
)

// drainer ends a gateway when its connections have ended.
//
//	serving ──begin──► draining ──nothing left, or the deadline──► over ──► the daemon stops
type drainer struct {
	begun chan struct{} // closed by begin
	over  chan struct{} // closed when the daemon is to stop

	mu       sync.Mutex // guards everything below
	started  bool
	deadline time.Time
	last     admin.DrainInfo
}

// drainTurn is how often it is looked whether anything is left.
const drainTurn = 100 * time.Millisecond

func newDrainer() *drainer {
	return &drainer{begun: make(chan struct{}), over: make(chan struct{})}
}

// begin starts the drain of so many flows. When it has begun already, the earlier
// deadline holds.
func (d *drainer) begin(flows int, now, deadline time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.started {
		d.started, d.deadline = true, deadline
		d.last = admin.DrainInfo{Schema: admin.DrainSchema, Flows: flows, RemainingSeconds: deadline.Sub(now).Seconds()}
		close(d.begun)
		return
	}
	if deadline.Before(d.deadline) {
		d.deadline = deadline
	}
}

// draining reports whether begin was called.
func (d *drainer) draining() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.started
}

// note keeps what is left and reports whether that is the end.
func (d *drainer) note(flows, lingering int, now time.Time) (over bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	over = flows == 0 && lingering == 0 || !now.Before(d.deadline)
	d.last = admin.DrainInfo{Schema: admin.DrainSchema, Flows: flows, Lingering: lingering, RemainingSeconds: max(0, d.deadline.Sub(now).Seconds()), Done: over}
	return over
}

// info is what note kept; nil before the drain.
func (d *drainer) info() *admin.DrainInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.started {
		return nil
	}
	i := d.last
	return &i
}

// errDrained ends the daemon's loops after a drain.
var errDrained = errors.New("drained")

// awaitDrain returns errDrained when a drain is over.
func (g *gateway) awaitDrain(ctx context.Context) error {
	select {
	case <-g.drainer.begun:
	case <-ctx.Done():
		return nil
	}
	tick := time.NewTicker(drainTurn)
	defer tick.Stop()
	for !g.drainer.note(g.left()) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
	i := g.drainer.info()
	g.log.Info("drained", "reset", i.Flows)
	close(g.drainer.over)
	return errDrained
}

// left counts what a drain waits for. The namespace's sockets are only looked at
// when no connection is carried any more.
func (g *gateway) left() (flows, lingering int, now time.Time) {
	now = time.Now()
	if flows = len(g.all()); flows > 0 {
		return flows, 0, now
	}
	n, err := g.steer.Lingering()
	if err != nil {
		g.log.Warn("sockets that linger are not known", "error", err)
	}
	return 0, n, now
}

// Drain implements admin.Control.
func (g *gateway) Drain(timeout time.Duration) (<-chan struct{}, error) {
	if timeout <= 0 {
		timeout = g.cfg.Limits.DrainTimeout
	}
	if err := g.steer.Refuse(uint8(negotiate.ReasonDrained)); err != nil {
		return nil, err
	}
	g.dgrams.Load().quiesce(negotiate.ReasonDrained)
	now, flows := time.Now(), len(g.all())
	g.log.Info("draining", "timeout", timeout, "flows", flows)
	g.drainer.begin(flows, now, now.Add(timeout))
	return g.drainer.over, nil
}

// Draining implements admin.Control.
func (g *gateway) Draining() *admin.DrainInfo { return g.drainer.info() }
