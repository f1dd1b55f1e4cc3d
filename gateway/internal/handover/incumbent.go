package handover

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/report"
)

const (
	// takeoverLimit bounds a takeover whose successor hangs. Then everything is taken back.
	takeoverLimit = time.Minute
	// firstPatience bounds the wait for the first message.
	firstPatience = 5 * time.Second
	// leftPatience bounds the wait for the successor to let new connections in, and then that for the end of the reload
	// that has started it. It is short: a gateway with nothing to serve ends a second after its last step.
	leftPatience = time.Second / 3
	// backEvery is how often to retry StepBack while a successor that hung has not ended.
	backEvery = 100 * time.Millisecond
)

// errServes is returned by a gateway that took back what it had yielded, and does not have its place back yet.
var errServes = errors.New("serves new connections, after a takeover that failed: replace it (smcgw up --takeover), or end it (smcgw drain)")

// Gateway is what a takeover needs from the gateway that is running. All methods but Draining may take longer than a
// second.
type Gateway interface {
	// Neighbour describes the datapath to a gateway that is to start beside it. It fails if none can take over; with
	// [ErrDraining] the description is valid nevertheless.
	Neighbour() (ebpf.Neighbour, error)
	// Draining returns how far a drain is; nil if there is none.
	Draining() *report.DrainInfo
	// Yield leaves new connections native and gives up the ports that only one gateway of a host can have. TakeBack
	// undoes it, also after a partial failure.
	Yield() error
	TakeBack() error
	// Leave hands all new connections to the successor, which it cannot undo, and drains. It does all that can fail
	// before it calls commit, which tells the successor the state of the kill switch; if commit fails, the successor
	// has gone, and nothing changes. main is the process that the service manager is to watch from then on; 0 if not
	// known.
	Leave(commit func(off bool) error, main int) error
}

// Place is where operators find the gateway.
type Place interface {
	// StepAside leaves the place to another gateway. StepBack takes it back, as far as the other gateway does not still
	// occupy it; it may be repeated.
	StepAside() error
	StepBack() error
}

// Incumbent is a gateway from which another one can take over. Each takeover is one conversation. If the conversation
// ends before the last step, the takeover is lost.
type Incumbent struct {
	*claims

	// Place must be set before the first conversation.
	Place Place

	gateway  Gateway
	log      *slog.Logger
	followed chan struct{} // closed, after left, when the successor has let new connections in
}

// NewIncumbent returns the Incumbent of a gateway.
func NewIncumbent(g Gateway, log *slog.Logger) *Incumbent {
	return &Incumbent{claims: newClaims(), gateway: g, log: log, followed: make(chan struct{})}
}

// Converse holds a conversation on a connection, which it closes. The caller has checked that the peer is permitted to
// change the gateway. When ctx ends Converse closes the connection, and the successor goes on alone.
func (i *Incumbent) Converse(ctx context.Context, c net.Conn) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	l := newLine(c)
	_ = l.SetReadDeadline(time.Now().Add(firstPatience))
	m, err := l.hear()
	switch {
	case err != nil:
	case m.Step == stepLook:
		err = i.describe(l)
	case m.Step == stepClaim:
		err = i.takenOver(ctx, l, m)
	default:
		err = errOrder
	}
	if err != nil {
		_ = l.say(message{Error: err.Error()}) // the successor may be gone
	}
}

// describe answers a gateway that is to start beside this one, which must be draining.
func (i *Incumbent) describe(l *line) error {
	n, err := i.gateway.Neighbour()
	switch {
	case err != nil && !errors.Is(err, ErrDraining):
		return err
	case i.gateway.Draining() == nil:
		return errServes
	}
	return l.say(message{Step: stepLook, Neighbour: &n})
}

// takenOver runs a takeover, from the claim to its end. If it returns an error, nothing has changed.
func (i *Incumbent) takenOver(ctx context.Context, l *line, claim message) error {
	t := &takeover{line: l}
	_ = l.SetReadDeadline(time.Now().Add(takeoverLimit)) // before wake may set another
	var n ebpf.Neighbour
	if err := i.claim(t.wake, func() (err error) { n, err = i.gateway.Neighbour(); return err }); err != nil {
		return err
	}
	defer i.free()
	i.log.Info("takeover begins", "version", claim.Version)
	if err := i.follow(t, n); err != nil {
		i.lose(ctx, t, err)
		return nil
	}
	_ = l.SetReadDeadline(time.Now().Add(leftPatience))
	_, _ = l.hear() // the successor ends the conversation once it lets new connections in
	close(i.followed)
	return nil
}

// takeover is the conversation that has claimed the gateway.
type takeover struct {
	*line
	toEnd  atomic.Bool // the gateway is to drain
	yields bool        // something may have been yielded
}

// wake makes the takeover end.
func (t *takeover) wake() {
	t.toEnd.Store(true)
	_ = t.SetReadDeadline(time.Now())
}

// follow goes through the steps of a takeover up to the last.
func (i *Incumbent) follow(t *takeover, n ebpf.Neighbour) error {
	if err := t.say(message{Step: stepClaim, Neighbour: &n}); err != nil {
		return err
	}
	if _, err := t.hearStep(stepYield); err != nil {
		return err
	}
	t.yields = true
	if err := i.step(stepYield, i.yield); err != nil {
		return err
	}
	if err := t.say(message{Step: stepYield}); err != nil {
		return err
	}
	m, err := t.hearStep(stepLeave)
	if err != nil {
		return err
	}
	return i.step(stepLeave, func() error {
		commit := func(off bool) error { return t.say(message{Step: stepLeave, Off: off}) }
		return i.gateway.Leave(commit, m.Main)
	})
}

// yield gives up what only one gateway can have.
func (i *Incumbent) yield() error {
	if err := i.gateway.Yield(); err != nil {
		return err
	}
	return i.Place.StepAside()
}

// lose ends a takeover that was not completed. It tells the successor first, which still has what is to be taken back.
// It takes connections back before the place: a successor that hangs keeps the place, so lose retries until ctx ends.
func (i *Incumbent) lose(ctx context.Context, t *takeover, why error) {
	if t.toEnd.Load() {
		why = errToDrain
	}
	i.log.Warn("takeover given up", "error", why)
	_ = t.say(message{Error: why.Error()}) // the successor may be gone
	_ = i.step(stepLost, func() error {
		if !t.yields || ctx.Err() != nil {
			return nil
		}
		if err := i.gateway.TakeBack(); err != nil {
			i.log.Error("after a takeover that failed not all is as it was", "error", err)
		}
		return nil
	})
	if !t.yields {
		return
	}
	i.log.Warn("takeover failed, this gateway goes on")
	tick := time.NewTicker(backEvery)
	defer tick.Stop()
	for err := i.Place.StepBack(); err != nil; err = i.Place.StepBack() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

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
