package handover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/faults"
)

// Options are what a gateway needs to start beside another one.
type Options struct {
	// Logger receives what happens.
	Logger *slog.Logger
	// Version is what status reports.
	Version string
	// TakeOver says to take over from the gateway at the admin socket, if there is one, which then drains.
	TakeOver bool
	// Main is the process by which the service manager knows this gateway.
	Main int
	// Faults are the faults that a test injects; nil: none.
	Faults faults.Injector
	// Die ends the process, as failed.
	Die func()
}

// late ends this process if the other gateway has taken everything back and this one hangs: there must not be two.
func (o Options) late(word string) {
	o.Logger.Error("the takeover has failed, and this gateway hangs: it ends", "error", word)
	o.Die()
}

// Heir is a gateway that starts beside another one.
type Heir interface {
	// Activate lets new connections in. SetOff(true) comes before it if the other gateway is switched off.
	Activate() error
	SetOff(off bool) error
}

// Predecessor is the gateway beside which this one starts. A nil Predecessor stands for none.
type Predecessor struct {
	neighbour ebpf.Neighbour
	talk      *talk     // nil: it is draining already
	asked     time.Time // when the takeover began
	o         Options

	stopBeats context.CancelFunc // nil before Yield
	beats     sync.WaitGroup
}

// Begin finds the gateway beside which this one is to start. It opens the admin socket, unless a predecessor has to
// give it up first.
func Begin(ctx context.Context, cfg config.Config, opts Options) (*Predecessor, *admin.Server, error) {
	log := opts.Logger
	if opts.TakeOver {
		asked := time.Now()
		t, n, err := ask(ctx, cfg.Admin, message{Step: stepClaim, Version: opts.Version}, opts.late)
		switch {
		case err == nil:
			log.Info("taking over", "generation", n.Generation)
			return &Predecessor{neighbour: n, talk: t, asked: asked, o: opts}, nil, nil
		case !admin.Absent(err):
			return nil, nil, fmt.Errorf("take over from the gateway at %s: %w", cfg.Admin, err)
		}
		log.Info("no gateway to take over from")
	}
	server, err := admin.Listen(cfg, opts.Version, log)
	if err != nil {
		return nil, nil, err
	}
	aside := cfg.Admin + config.DrainingSuffix
	t, n, err := ask(ctx, aside, message{Step: stepLook}, opts.late)
	if admin.Absent(err) {
		return nil, server, nil
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("gateway at %s: %w", aside, err), server.Close())
	}
	t.close()
	log.Info("starting beside a gateway that drains", "generation", n.Generation)
	return &Predecessor{neighbour: n, o: opts}, server, nil
}

// Place configures the datapath beside that of the predecessor. A host has room for two: one that takes new
// connections, and one that drains.
func (p *Predecessor) Place(out *ebpf.Config) {
	if p == nil {
		return
	}
	out.Generation, out.Beside = 1, &p.neighbour
	if p.neighbour.Generation == 1 {
		out.Generation = 2
	}
}

// Yield makes the predecessor give up what only one gateway can have, and opens the admin socket in its place. From
// here until TakeOver, beat sends the guardian its heartbeat, until its context ends.
func (p *Predecessor) Yield(ctx context.Context, cfg config.Config, beat func(context.Context)) (*admin.Server, error) {
	beating, stop := context.WithDeadline(context.Background(), p.asked.Add(beatLimit))
	p.stopBeats = stop
	p.beats.Go(func() { beat(beating) })
	if err := p.reach(ctx, faults.TakeoverOpened); err != nil {
		return nil, err
	}
	if _, err := p.step(ctx, message{Step: stepYield}); err != nil {
		return nil, err
	}
	server, err := admin.Succeed(cfg, p.o.Version, p.o.Logger)
	if err != nil {
		return nil, err
	}
	if err := p.reach(ctx, faults.TakeoverYielded); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return server, nil
}

// reach is called at each step. If a test asks for it, it holds the takeover there until ctx or the other gateway ends.
func (p *Predecessor) reach(ctx context.Context, step string) error {
	if p.o.Faults == nil || !p.o.Faults.Takeover(step) {
		return nil
	}
	p.o.Logger.Warn("takeover held", "step", step)
	select {
	case <-ctx.Done():
	case <-p.talk.ended:
	}
	return ctx.Err()
}

// step makes the predecessor do a step. If the predecessor has died, the step counts as done, and this gateway goes on
// alone.
func (p *Predecessor) step(ctx context.Context, m message) (message, error) {
	answer, err := p.talk.step(ctx, m)
	switch {
	case errors.Is(err, errDied):
		p.o.Logger.Warn("the gateway to take over from has died", "step", m.Step)
		return message{}, nil
	case err != nil:
		return message{}, fmt.Errorf("take over: %w", err)
	}
	return answer, nil
}

// beatLimit is how long after the beginning of a takeover a process without a gateway may beat. It ensures that one that
// hangs is ended by its guardian, within ten seconds of the last beat, before the other gateway takes back what the
// process still holds.
const beatLimit = takeoverLimit - 15*time.Second

// TakeOver makes the predecessor leave new connections to this gateway, and then lets them in. If it fails, this
// gateway has no connections and must end: after Close the predecessor takes everything back.
func (p *Predecessor) TakeOver(ctx context.Context, h Heir) error {
	if p == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	p.stopBeating()
	if p.talk == nil {
		return h.Activate()
	}
	if err := p.reach(ctx, faults.TakeoverBuilt); err != nil {
		return err
	}
	last, err := p.step(ctx, message{Step: stepLeave, Main: p.o.Main})
	if err == nil && last.Off { // unset for one that has died: this gateway then restores what it has found
		err = h.SetOff(true)
	}
	if err == nil {
		err = h.Activate()
	}
	if err != nil {
		return err
	}
	p.o.Logger.Info("taken over")
	p.talk.finish()
	return nil
}

func (p *Predecessor) stopBeating() {
	if p.stopBeats != nil {
		p.stopBeats()
	}
	p.beats.Wait()
}

// Close gives up a takeover that was not completed. Call it once this gateway has freed all that the predecessor takes
// back.
func (p *Predecessor) Close() {
	if p == nil {
		return
	}
	p.stopBeating()
	if p.talk != nil {
		p.talk.close()
	}
}
