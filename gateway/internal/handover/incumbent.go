package handover

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/report"
)

const (
	// takeoverLimit bounds a takeover whose successor hangs: then everything is taken back.
	takeoverLimit = time.Minute
	// firstPatience is for the first message.
	firstPatience = 5 * time.Second
	// leftPatience is for the successor to let new connections in, and then for the end of the
	// reload that has started it: a gateway with nothing to serve ends a second after its last step.
	leftPatience = time.Second / 3
	// backEvery is how often it is looked whether a successor that hung has ended.
	backEvery = 100 * time.Millisecond
)

// errServes is returned when a gateway took back what it had yielded, and is not in its place yet.
var errServes = errors.New("serves new connections, after a takeover that failed: replace it (smcgw up --takeover), or end it (smcgw drain)")

// Gateway is what a takeover asks of the gateway that is there. All but Draining may take
// longer than a second.
type Gateway interface {
	// Neighbour describes the datapath to a gateway that is to start beside it. It fails where
	// none can take over; with [ErrDraining] the description is there all the same.
	Neighbour() (ebpf.Neighbour, error)
	// Draining tells how far a drain is; nil if none.
	Draining() *report.DrainInfo
	// Yield leaves new connections alone and gives up the ports that only one gateway of a
	// host can have; TakeBack undoes it, or what of it was done when it failed.
	Yield() error
	TakeBack() error
	// Leave leaves new connections to the successor for good, and drains. What can fail comes
	// before commit, which tells the successor of the kill switch; if that fails, the successor
	// has gone, and nothing changes. A service manager is to watch the process main; 0: it is
	// not known.
	Leave(commit func(off bool) error, main int) error
}

// Place is where operators find the gateway.
type Place interface {
	// StepAside leaves it to another gateway. StepBack undoes that, or as much of it as the
	// other one does not keep; it can be repeated.
	StepAside() error
	StepBack() error
}

// Incumbent is a gateway from which another one can take over. Each takeover is one conversation,
// whose end means that it is lost, unless it has come to its last step.
type Incumbent struct {
	*claims

	// Place is set before the first conversation.
	Place Place

	gateway  Gateway
	log      *slog.Logger
	followed chan struct{} // closed after left, when the successor lets new connections in
}

// NewIncumbent returns that of a gateway.
func NewIncumbent(g Gateway, log *slog.Logger) *Incumbent {
	return &Incumbent{claims: newClaims(), gateway: g, log: log, followed: make(chan struct{})}
}

// Converse holds a conversation on a connection, which it closes. Its peer must be permitted to change
// the gateway. The end of ctx ends it: a successor goes on alone.
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
		_ = l.say(message{Error: err.Error()}) // it may be gone
	}
}

// describe answers a gateway that is to start beside this one, which has to drain.
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

// takenOver is a takeover, from the claim to its end. An error changes nothing.
func (i *Incumbent) takenOver(ctx context.Context, l *line, claim message) error {
	t := &takeover{line: l}
	_ = l.SetReadDeadline(time.Now().Add(takeoverLimit)) // before it may be woken
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
	_, _ = l.hear() // its end of the conversation: it lets new connections in
	close(i.followed)
	return nil
}

// takeover is the conversation that has claimed the gateway.
type takeover struct {
	*line
	toEnd  atomic.Bool // the gateway is to drain
	yields bool        // something may have been yielded
}

// wake has the takeover end.
func (t *takeover) wake() {
	t.toEnd.Store(true)
	_ = t.SetReadDeadline(time.Now())
}

// follow goes through the steps of a takeover to the last.
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

// lose ends a takeover that has not come to its end. The successor hears of it first: what is
// taken back is still its own. Connections come first; the place, which a successor that hangs
// keeps, is waited for until ctx ends.
func (i *Incumbent) lose(ctx context.Context, t *takeover, why error) {
	if t.toEnd.Load() {
		why = errToDrain
	}
	i.log.Warn("takeover given up", "error", why)
	_ = t.say(message{Error: why.Error()}) // it may be gone
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
