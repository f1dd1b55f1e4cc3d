package handover

import (
	"context"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
)

// Drainer ends a gateway when its connections have ended.
//
//	serving ──begin──► draining ──nothing left, or the deadline──► over ──► the daemon stops
type Drainer struct {
	begun chan struct{} // closed by begin
	over  chan struct{} // closed by Finish

	mu       sync.Mutex // guards everything below
	started  bool
	deadline time.Time
	last     report.DrainInfo
}

// drainTurn is how often it is looked whether anything is left.
const drainTurn = 100 * time.Millisecond

// NewDrainer returns the drainer of a gateway that serves.
func NewDrainer() *Drainer {
	return &Drainer{begun: make(chan struct{}), over: make(chan struct{})}
}

// Begin starts the drain of so many flows. When it has begun already, the earlier
// deadline holds.
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

// Draining reports whether begin was called.
func (d *Drainer) Draining() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.started
}

// note keeps what is left and reports whether that is the end.
func (d *Drainer) note(flows, lingering int, now time.Time) (over bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	over = flows == 0 && lingering == 0 || !now.Before(d.deadline)
	d.last = report.DrainInfo{Schema: report.DrainSchema, Flows: flows, Lingering: lingering, RemainingSeconds: max(0, d.deadline.Sub(now).Seconds()), Done: over}
	return over
}

// Info is what note kept; nil before the drain.
func (d *Drainer) Info() *report.DrainInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.started {
		return nil
	}
	i := d.last
	return &i
}

// Await waits for the drain and then for its end, of which left tells: how many flows
// and lingering sockets there are, and when that was. It is false if ctx ends first.
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

// Finish has the daemon stop, once.
func (d *Drainer) Finish() { close(d.over) }

// Finished returns the channel that Finish closes.
func (d *Drainer) Finished() <-chan struct{} { return d.over }
