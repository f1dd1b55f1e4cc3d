package handover

import (
	"context"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
)

// Drainer ends a gateway once its connections have ended.
//
//	serving ──begin──► draining ──nothing left, or the deadline──► over ──► the daemon stops
type Drainer struct {
	begun chan struct{} // closed by Begin
	over  chan struct{} // closed by Finish

	mu       sync.Mutex // guards everything below
	started  bool
	deadline time.Time
	last     report.DrainInfo
}

// drainTurn is how often Await checks whether anything is left.
const drainTurn = 100 * time.Millisecond

// NewDrainer returns the drainer of a gateway that is serving.
func NewDrainer() *Drainer {
	return &Drainer{begun: make(chan struct{}), over: make(chan struct{})}
}

// Begin starts the drain, with the current number of flows. If it has begun before, the earlier deadline applies.
func (d *Drainer) Begin(flows int, now, deadline time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.started {
		d.started, d.deadline = true, deadline
		d.last = report.DrainInfo{Schema: report.DrainSchema, Flows: flows, RemainingSeconds: deadline.Sub(now).Seconds()}
		close(d.begun)
		return
	}
	if deadline.Before(d.deadline) {
		d.deadline = deadline
	}
}

// Draining reports whether Begin was called.
func (d *Drainer) Draining() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.started
}

// note records what is left and reports whether the drain is over.
func (d *Drainer) note(flows, lingering int, now time.Time) (over bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	over = flows == 0 && lingering == 0 || !now.Before(d.deadline)
	d.last = report.DrainInfo{Schema: report.DrainSchema, Flows: flows, Lingering: lingering, RemainingSeconds: max(0, d.deadline.Sub(now).Seconds()), Done: over}
	return over
}

// Info returns what note last recorded; nil before the drain.
func (d *Drainer) Info() *report.DrainInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.started {
		return nil
	}
	i := d.last
	return &i
}

// Await waits for the drain to begin, and then for its end. left returns the current numbers of flows and lingering
// sockets, and the time. Await returns false if ctx ends first.
func (d *Drainer) Await(ctx context.Context, left func() (flows, lingering int, now time.Time)) bool {
	select {
	case <-d.begun:
	case <-ctx.Done():
		return false
	}
	tick := time.NewTicker(drainTurn)
	defer tick.Stop()
	for !d.note(left()) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// Finish stops the daemon. Call it once.
func (d *Drainer) Finish() { close(d.over) }

// Finished returns the channel that Finish closes.
func (d *Drainer) Finished() <-chan struct{} { return d.over }
