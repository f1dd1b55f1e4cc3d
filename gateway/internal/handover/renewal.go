package handover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
)

// Renewal puts another configuration in force in a gateway, or starts another program in its place. Its fields must be
// set before the first use.
type Renewal struct {
	Log     *slog.Logger
	Config  config.Config                       // with which the gateway has started
	Apply   func(config.Config, [][]byte) error // puts a configuration and its keys in force, entirely or not at all
	Reloads *Reloads                            // records the outcomes
	Load    func() (config.Config, error)       // nil: the configuration is not from a file
	Program *process.Program                    // nil: it cannot be started again
	Manager *process.ServiceManager
	// Incumbent is what another gateway takes over from. Old tells about the gateway that this one has taken over from,
	// if that is still draining.
	Incumbent *Incumbent
	Old       func() *report.DrainInfo

	files process.Lane // serializes reading files; the manager hears of one reload at a time
}

var (
	errNoFile    = errors.New("the configuration is not of a file")
	errNoProgram = errors.New("this gateway cannot start another one")

	errSuccessorLate = errors.New("the new gateway has not taken over in time")
)

// Renew puts the configuration of the file in force. It starts a successor for that, and returns true, if the installed
// program differs from the running one, if the configuration requires a restart, or if always; otherwise this gateway
// applies it. If Renew fails nothing has changed. The end of ctx ends it.
func (r *Renewal) Renew(ctx context.Context, always bool) (replaced bool, err error) {
	if r.Incumbent.Busy() {
		return false, ErrUnderWay
	}
	next, err := r.renew(ctx, always)
	if next == nil || err != nil {
		return false, err
	}
	if err := r.await(ctx, next); err != nil {
		return false, r.besideOld(err)
	}
	return true, nil
}

// successor is a gateway that has been started to take over: *process.Successor.
type successor interface {
	Ended() <-chan error
	Release()
	End()
}

// await waits until this gateway has left new connections to a successor, and the successor has let them in. A
// successor that has not got to that by the end of ctx is ended.
func (r *Renewal) await(ctx context.Context, next successor) error {
	var err error
	select {
	case <-r.Incumbent.left:
	case err = <-next.Ended():
	case <-ctx.Done():
		err = errSuccessorLate
	}
	select {
	case <-r.Incumbent.left: // which may end this gateway immediately
	case <-time.After(leftPatience):
		r.Log.Error("no other gateway takes over", "error", err)
		next.End()
		return err
	}
	defer next.Release()
	select {
	case <-r.Incumbent.followed:
	case <-time.After(leftPatience):
	}
	return nil
}

// besideOld replaces an error by its cause if a draining gateway keeps any successor from taking over.
func (r *Renewal) besideOld(err error) error {
	old := r.Old()
	if old == nil {
		return err
	}
	return fmt.Errorf("%w (connections: %d, for %v at most); to reset them now: smcgw drain --timeout 1s --socket %s",
		ErrDraining, old.Flows+old.Lingering, time.Duration(old.RemainingSeconds)*time.Second, r.Config.Admin+config.DrainingSuffix)
}

// renew is Renew without the wait for the successor, which it returns.
func (r *Renewal) renew(ctx context.Context, always bool) (*process.Successor, error) {
	next, err := r.successor(ctx, always)
	if next != nil || err != nil {
		return next, err
	}
	restart := r.takeIn(ctx, true)
	if !takesRestart(restart) {
		return nil, restart
	}
	if next, err = r.successor(ctx, true); err != nil {
		return nil, r.refused(fmt.Errorf("%w, and no other gateway can take over: %w", restart, err))
	}
	return next, nil
}

// takesRestart reports whether err refuses a configuration that a successor would put in force.
func takesRestart(err error) bool {
	return errors.Is(err, config.ErrRestart) && !errors.Is(err, config.ErrStop)
}

// Loop reads the configuration again for each signal, until ctx ends.
func (r *Renewal) Loop(ctx context.Context, signals <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			_ = r.takeIn(ctx, false) // log and status tell the outcome
		}
	}
}

// takeIn reads the configuration and its keys, and puts them in force, entirely or not at all. The work goes on after
// ctx ends, since a read from a file server that does not answer cannot be interrupted. With restarts, a configuration
// that requires a restart is not recorded as refused, but left to a successor.
func (r *Renewal) takeIn(ctx context.Context, restarts bool) error {
	if r.Load == nil {
		return errNoFile
	}
	return r.files.Do(ctx, func() error { return r.again(restarts) })
}

func (r *Renewal) again(restarts bool) error {
	defer r.Manager.Reload()()
	cfg, err := r.Load()
	var keys [][]byte
	if err == nil {
		keys, err = config.LoadKeys(cfg.Security.PSKFile)
	}
	if err == nil {
		err = r.Apply(cfg, keys)
	}
	switch {
	case restarts && takesRestart(err):
		return err
	case err != nil:
		return r.refused(err)
	}
	r.Reloads.Note(nil, time.Now())
	r.Log.Info("configuration in force", "mode", cfg.Mode, "rules", len(cfg.Policy))
	return nil
}

// refused records and logs a configuration that is refused.
func (r *Renewal) refused(err error) error {
	r.Reloads.Note(err, time.Now())
	r.Log.Error("configuration refused, the one before stays in force", "error", err)
	return err
}

// successor starts the installed program if it differs from the running one, or if always.
func (r *Renewal) successor(ctx context.Context, always bool) (*process.Successor, error) {
	if r.Program == nil || r.Load == nil {
		if always {
			return nil, errNoProgram
		}
		return nil, nil
	}
	replaced, err := process.Through(ctx, &r.files, func() (bool, error) { return r.replaced(always) })
	if err != nil || !replaced && !always {
		return nil, err
	}
	if err := process.CanSucceed(); err != nil {
		return nil, err
	}
	r.Log.Info("starting a gateway that takes over", "program", r.Program.Path, "replaced", replaced)
	return r.Program.Start()
}

// replaced reports whether the installed program differs from the running one. If a program is to be started, it
// returns an error for a configuration with which that would only end.
func (r *Renewal) replaced(always bool) (bool, error) {
	replaced, err := r.Program.Replaced()
	if err != nil || !replaced && !always {
		return false, err
	}
	cfg, err := r.Load()
	if err == nil {
		err = r.Config.CheckReplace(cfg)
	}
	if err != nil {
		return false, r.refused(err)
	}
	return replaced, nil
}
