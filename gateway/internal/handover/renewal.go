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

// Renewal has another configuration take effect in a gateway, or another program in its
// place. Its fields are set before the first use.
type Renewal struct {
	Log     *slog.Logger
	Apply   func(config.Config, [][]byte) error // puts a configuration in force with its keys, whole or not at all
	Reloads *Reloads                            // what came of that
	Load    func() (config.Config, error)       // nil: the configuration is not of a file
	Follows func(config.Config) error           // whether a gateway with a configuration can take over; nil: any can
	Program *process.Program                    // nil: it cannot be started again
	Manager *process.ServiceManager
	// Incumbent is what another gateway takes over from, and Old tells of the gateway that this one has
	// taken over from, at PastAdmin, if that still drains.
	Incumbent *Incumbent
	Old       func() *report.DrainInfo
	PastAdmin string

	files process.Lane // of what is read; the manager hears of one reload at a time
}

var (
	errNoFile    = errors.New("the configuration is not of a file")
	errNoProgram = errors.New("this gateway cannot start another one")

	errSuccessorLate = errors.New("the new gateway has not taken over in time")
)

// Renew has the configuration of the file take effect: by a gateway that takes over, of which it tells, if
// the installed program is another one than runs, if the configuration takes a restart, or always;
// else in this gateway. What fails has changed nothing. The end of ctx ends it.
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

// await waits until this gateway has left new connections to a successor, which lets them in.
// One that has not come that far at the end of ctx is ended: what it is for has failed.
func (r *Renewal) await(ctx context.Context, next successor) error {
	var err error
	select {
	case <-r.Incumbent.left:
	case err = <-next.Ended():
	case <-ctx.Done():
		err = errSuccessorLate
	}
	select {
	case <-r.Incumbent.left: // which may end this gateway at once
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

// besideOld names what keeps any successor from taking over: a gateway that drains.
func (r *Renewal) besideOld(err error) error {
	old := r.Old()
	if old == nil {
		return err
	}
	return fmt.Errorf("%w (connections: %d, for %v at most); to reset them now: smcgw drain --timeout 1s --socket %s",
		ErrDraining, old.Flows+old.Lingering, time.Duration(old.RemainingSeconds)*time.Second, r.PastAdmin)
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

// takesRestart reports whether a successor would put a configuration in force that is refused.
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
			_ = r.takeIn(ctx, false) // which the log and the status tell
		}
	}
}

// takeIn reads the configuration and its keys, and puts them in force, whole or not at all. It
// goes on after the end of ctx, which a file on a server that does not answer may outlast.
// restarts: what takes a restart is not refused, but left to a successor.
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

// refused has the status and the log tell of a configuration that is not taken.
func (r *Renewal) refused(err error) error {
	r.Reloads.Note(err, time.Now())
	r.Log.Error("configuration refused, the one before stays in force", "error", err)
	return err
}

// successor starts the installed program, if it is another one than runs, or always.
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

// replaced reports whether the installed program is another one than runs. Where one is to be started, the configuration with
// which it would only end is an error.
func (r *Renewal) replaced(always bool) (bool, error) {
	replaced, err := r.Program.Replaced()
	if err != nil || !replaced && !always {
		return false, err
	}
	cfg, err := r.Load()
	if err == nil && r.Follows != nil {
		err = r.Follows(cfg)
	}
	if err != nil {
		return false, r.refused(err)
	}
	return replaced, nil
}
