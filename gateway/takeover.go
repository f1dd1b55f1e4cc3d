package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
)

// generations are those of the gateways that can be on one host at a time: one that
// takes new connections, and one that drains.
var generations = [...]int{1, 2}

// The steps of a takeover at which its successor can be held, to die there.
const (
	takeoverOpened    = "opened"  // its datapath is open, under its guardian
	takeoverYielded   = "yielded" // the other one has yielded
	takeoverActivated = "active"  // new connections are its own, and the other one does not know
)

// reach is called at each step: if a test asks for it, it stays there until ctx or
// the other gateway ends.
func (p *predecessor) reach(ctx context.Context, step string) error {
	if p.faults == nil || !p.faults.Takeover(step) {
		return nil
	}
	p.log.Warn("takeover held", "step", step)
	select {
	case <-ctx.Done():
	case <-p.takeover.done:
	}
	return ctx.Err()
}

// predecessor is the gateway beside which this one starts. A nil one stands for
// none.
type predecessor struct {
	neighbour ebpf.Neighbour
	takeover  *Takeover // nil: it drains already
	drain     time.Duration
	log       *slog.Logger
	faults    Faults // nil: none
	alone     bool   // it has died meanwhile: nobody is to be told

	once    sync.Once
	beating chan struct{} // closed to end keepBeating
	beats   sync.WaitGroup
}

// begin finds out beside whom this gateway is to start, and opens the admin socket
// unless somebody has to give it up first.
func begin(ctx context.Context, cfg Config, opts RunOptions) (*predecessor, *AdminServer, error) {
	log := opts.logger()
	if opts.TakeOver {
		c := NewAdminClient(cfg.Admin)
		defer c.Close()
		t, err := c.TakeOver(ctx)
		switch {
		case err == nil:
			log.Info("taking over", "generation", t.Offer.Neighbour.Generation)
			return &predecessor{neighbour: t.Offer.Neighbour, takeover: t, drain: opts.DrainTimeout, log: log, faults: opts.Faults, beating: make(chan struct{})}, nil, nil
		case !errors.Is(err, ErrDaemonUnreachable):
			return nil, nil, fmt.Errorf("take over: %w", err)
		}
		log.Info("no gateway to take over from")
	}
	admin, err := ListenAdmin(cfg, opts.Version, log)
	if err != nil {
		return nil, nil, err
	}
	c := NewAdminClient(cfg.Admin + drainingSuffix)
	defer c.Close()
	n, err := c.neighbour(ctx)
	if errors.Is(err, ErrDaemonUnreachable) {
		return nil, admin, nil
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("gateway that drains: %w", err), admin.Close())
	}
	log.Info("starting beside a gateway that drains", "generation", n.Generation)
	return &predecessor{neighbour: n, log: log, faults: opts.Faults, beating: make(chan struct{})}, admin, nil
}

// steering is the datapath's configuration, beside that of the predecessor.
func (p *predecessor) steering(cfg Config, log *slog.Logger) ebpf.Config {
	out := steeringConfig(cfg, log)
	if p == nil {
		return out
	}
	at := generations[0]
	if p.neighbour.Generation == at {
		at = generations[1]
	}
	out.Generation, out.Beside = at, &p.neighbour
	return out
}

// yield has the predecessor give up what only one gateway can have and opens the
// admin socket in its place. The guardian gets its heartbeat from here until takeOver.
func (p *predecessor) yield(ctx context.Context, cfg Config, opts RunOptions, beat func() error) (*AdminServer, error) {
	p.beats.Go(func() { p.keepBeating(beat) })
	if err := p.reach(ctx, takeoverOpened); err != nil {
		return nil, err
	}
	err := p.takeover.Yield(ctx)
	if died(ctx, err) {
		p.log.Warn("the gateway to take over from has died", "error", err)
		p.alone, err = true, nil
	}
	if err != nil {
		return nil, fmt.Errorf("take over: %w", err)
	}
	admin, err := listenAdmin(cfg, opts.Version, opts.logger(), true)
	if err != nil {
		return nil, err
	}
	if err := p.reach(ctx, takeoverYielded); err != nil {
		return nil, errors.Join(err, admin.Close())
	}
	return admin, nil
}

// died reports whether an error means that the other process is gone: not that it
// does not answer in time.
func died(ctx context.Context, err error) bool {
	return errors.Is(err, ErrDaemonUnreachable) && !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
}

// keepBeating says that this process lives while there is no gateway yet that
// could, for as long as a takeover may last.
func (p *predecessor) keepBeating(beat func() error) {
	tick := time.NewTicker(beatInterval)
	defer tick.Stop()
	limit := time.NewTimer(takeoverLimit)
	defer limit.Stop()
	for {
		_ = beat() // the guardian sees it if that fails
		select {
		case <-tick.C:
		case <-limit.C:
			return
		case <-p.beating:
			return
		}
	}
}

// takeOver lets new connections in and tells the predecessor so. When it refuses it
// has taken everything back, and this gateway must go.
func (p *predecessor) takeOver(ctx context.Context, b Beside) error {
	if p == nil {
		return nil
	}
	p.stopBeating()
	if err := b.Activate(); err != nil {
		return err
	}
	if p.takeover == nil || p.alone {
		return nil
	}
	defer p.close()
	err := p.reach(ctx, takeoverActivated)
	if err == nil {
		err = p.takeover.Leave(ctx, p.drain)
	}
	if died(ctx, err) {
		p.log.Warn("the gateway that was taken over from has died", "error", err)
		return nil
	}
	if err != nil { // it goes on: it restores what it has found, and not we
		return fmt.Errorf("take over: %w", errors.Join(err, b.Retire()))
	}
	p.log.Info("taken over")
	return nil
}

func (p *predecessor) stopBeating() {
	p.once.Do(func() { close(p.beating) })
	p.beats.Wait()
}

// close gives up a takeover that has not come to its end.
func (p *predecessor) close() {
	if p == nil {
		return
	}
	p.stopBeating()
	if p.takeover != nil {
		p.takeover.Close()
	}
}
