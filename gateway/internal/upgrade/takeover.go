package upgrade

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

// generations are those of the gateways that can be on one host at a time: one that
// takes new connections, and one that drains.
var generations = [...]int{1, 2}

// reach is called at each step: if a test asks for it, it stays there until ctx or
// the other gateway ends.
func (p *Predecessor) reach(ctx context.Context, step string) error {
	if p.o.Faults == nil || !p.o.Faults.Takeover(step) {
		return nil
	}
	p.log.Warn("takeover held", "step", step)
	select {
	case <-ctx.Done():
	case <-p.takeover.Done:
	}
	return ctx.Err()
}

// Options are what a gateway needs to start beside another one.
type Options struct {
	// Logger receives what happens.
	Logger *slog.Logger
	// Version is what status reports.
	Version string
	// TakeOver is to take over from the gateway on the admin socket, if there is one,
	// which then serves its connections for DrainTimeout at most.
	TakeOver     bool
	DrainTimeout time.Duration
	// Main is the process by which a service manager knows this gateway.
	Main int
	// BeatEvery is how often the datapath is told that this process lives.
	BeatEvery time.Duration
	// Faults are those that a test wants; nil: none.
	Faults faults.Injector
	// Die ends the process as a failure.
	Die func()
}

// Heir is a gateway beside another one.
type Heir interface {
	// Activate lets new connections in. SetOff comes before where the other one is switched off.
	Activate() error
	SetOff(off bool) error
}

// Predecessor is the gateway beside which this one starts. A nil one stands for
// none.
type Predecessor struct {
	neighbour ebpf.Neighbour
	takeover  *admin.Takeover // nil: it drains already
	asked     time.Time       // when the takeover began
	o         Options
	log       *slog.Logger
	alone     bool // it has died meanwhile: there is no process to tell

	closed  chan struct{} // by Close; nil as takeover
	over    sync.Once
	once    sync.Once
	beating chan struct{} // closed to end keepBeating
	beats   sync.WaitGroup
}

// Begin finds out beside which gateway this one is to start. It opens the admin
// socket, unless a predecessor has to give it up first.
func Begin(ctx context.Context, cfg config.Config, opts Options) (*Predecessor, *admin.Server, error) {
	log := opts.Logger
	if opts.TakeOver {
		c := admin.NewClient(cfg.Admin)
		defer c.Close()
		asked := time.Now()
		t, err := c.TakeOver(ctx)
		switch {
		case err == nil:
			log.Info("taking over", "generation", t.Offer.Neighbour.Generation)
			p := &Predecessor{neighbour: t.Offer.Neighbour, takeover: t, asked: asked, o: opts, log: log, beating: make(chan struct{}), closed: make(chan struct{})}
			go p.endLate()
			return p, nil, nil
		case !admin.Absent(err):
			return nil, nil, fmt.Errorf("take over from the gateway at %s: %w", cfg.Admin, err)
		}
		log.Info("no gateway to take over from")
	}
	server, err := admin.Listen(cfg, opts.Version, log)
	if err != nil {
		return nil, nil, err
	}
	c := admin.NewClient(cfg.Admin + config.DrainingSuffix)
	defer c.Close()
	n, err := draining(ctx, c)
	if admin.Absent(err) {
		return nil, server, nil
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("gateway at %s: %w", cfg.Admin+config.DrainingSuffix, err), server.Close())
	}
	log.Info("starting beside a gateway that drains", "generation", n.Generation)
	return &Predecessor{neighbour: n, o: opts, log: log, beating: make(chan struct{})}, server, nil
}

// errServes is returned when a gateway took back what it had yielded, and its admin socket is
// not in its place yet.
var errServes = errors.New("serves new connections, after a takeover that failed: replace it (smcgw up --takeover), or end it (smcgw drain)")

// draining asks a gateway that drains for its datapath.
func draining(ctx context.Context, c *admin.Client) (ebpf.Neighbour, error) {
	st, err := c.Status(ctx)
	if err == nil && st.Draining == nil {
		err = errServes
	}
	if err != nil {
		return ebpf.Neighbour{}, err
	}
	return c.Neighbour(ctx)
}

// Place puts the datapath of a configuration beside that of the predecessor.
func (p *Predecessor) Place(out *ebpf.Config) {
	if p == nil {
		return
	}
	at := generations[0]
	if p.neighbour.Generation == at {
		at = generations[1]
	}
	out.Generation, out.Beside = at, &p.neighbour
}

// Yield has the predecessor give up what only one gateway can have and opens the
// admin socket in its place. The guardian gets its heartbeat from here until TakeOver.
func (p *Predecessor) Yield(ctx context.Context, cfg config.Config, beat func() error) (*admin.Server, error) {
	p.beats.Go(func() { p.keepBeating(beat) })
	if err := p.reach(ctx, faults.TakeoverOpened); err != nil {
		return nil, err
	}
	if err := p.takeover.Yield(ctx); err != nil {
		if p.alone, err = p.died(ctx, err); err != nil {
			return nil, fmt.Errorf("take over: %w", err)
		}
		p.log.Warn("the gateway to take over from has died")
	}
	server, err := admin.Succeed(cfg, p.o.Version, p.log)
	if err != nil {
		return nil, err
	}
	if err := p.reach(ctx, faults.TakeoverYielded); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return server, nil
}

// died reports whether a step that failed means that the other process is gone, without an
// error: not that it does not answer in time, nor that it has ended the takeover before.
func (p *Predecessor) died(ctx context.Context, err error) (bool, error) {
	if !errors.Is(err, admin.ErrDaemonUnreachable) || errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return false, err
	}
	if word := p.takeover.Ended(ctx); word != nil {
		return false, errors.Join(word, err)
	}
	return true, nil
}

// beatLimit is for how long after the begin of a takeover keepBeating may beat. The guardian ends
// a process that hangs before the other gateway takes back what that still holds: ten seconds
// after its last beat at most.
const beatLimit = admin.TakeoverLimit - 15*time.Second

// keepBeating says that this process lives while there is no gateway yet that
// could, for beatLimit at most.
func (p *Predecessor) keepBeating(beat func() error) {
	tick := time.NewTicker(p.o.BeatEvery)
	defer tick.Stop()
	limit := time.NewTimer(time.Until(p.asked.Add(beatLimit)))
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

// TakeOver has the predecessor leave new connections to this gateway, and lets them in after
// that: none is this gateway's when it is refused. Then it must go: the predecessor takes
// everything back after Close.
func (p *Predecessor) TakeOver(ctx context.Context, h Heir) error {
	if p == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	p.stopBeating()
	if p.takeover != nil && !p.alone {
		off, err := p.succeed(ctx)
		if err == nil && off {
			err = h.SetOff(true)
		}
		if err != nil {
			return fmt.Errorf("take over: %w", err)
		}
		defer p.Close() // which says that new connections are let in
	}
	return h.Activate()
}

// succeed is the last step. It tells whether the predecessor is switched off.
func (p *Predecessor) succeed(ctx context.Context) (off bool, err error) {
	err = p.reach(ctx, faults.TakeoverBuilt)
	if err == nil {
		off, err = p.takeover.Leave(ctx, p.o.DrainTimeout, p.o.Main)
	}
	if err == nil {
		p.log.Info("taken over")
		return off, nil
	}
	died, err := p.died(ctx, err)
	if died { // else it goes on: it restores what it has found, and not we
		p.log.Warn("the gateway that was taken over from has died")
	}
	return false, err
}

func (p *Predecessor) stopBeating() {
	p.once.Do(func() { close(p.beating) })
	p.beats.Wait()
}

// Close gives up a takeover that has not come to its end. It comes when this gateway has
// freed all that the predecessor takes back.
func (p *Predecessor) Close() {
	if p == nil {
		return
	}
	p.stopBeating()
	if p.takeover != nil {
		p.over.Do(func() { close(p.closed) })
		p.takeover.Close()
	}
}

// endPatience is for a gateway that is refused its next step to end by itself.
const endPatience = 15 * time.Second

// endLate ends this process when the other gateway has taken everything back, and Close does not
// follow: it hangs, and there must not be two.
func (p *Predecessor) endLate() {
	select {
	case <-p.closed:
		return
	case <-p.takeover.Done:
	}
	word := p.takeover.Ended(context.Background())
	if word == nil { // the other one has died
		return
	}
	select {
	case <-p.closed:
	case <-time.After(endPatience):
		p.log.Error("the takeover has failed, and this gateway hangs: it ends", "error", word)
		p.o.Die()
	}
}
