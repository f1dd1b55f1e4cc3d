package handover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
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

// Reloads records the attempts to read the configuration again. The zero value is ready to use.
type Reloads struct {
	mu            sync.Mutex // guards everything below
	done, refused uint64
	err           error // of the latest; nil: it is in force
	at            time.Time
}

// Note records an attempt.
func (r *Reloads) Note(err error, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err, r.at = err, now
	if err == nil {
		r.done++
	} else {
		r.refused++
	}
}

// Tell adds the latest refusal to the status, until a reload succeeds.
func (r *Reloads) Tell(st *report.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		return
	}
	st.Degraded = append(st.Degraded, report.ConfigRefused)
	remedy := "correct it (smcgw check) and reload"
	switch {
	case errors.Is(r.err, config.ErrStop):
		remedy = "a stop and a start put it in force"
	case errors.Is(r.err, config.ErrRestart):
		remedy = "smcgw reload, or a restart, puts it in force"
	case errors.Is(r.err, ErrUnderWay):
		remedy = "reload when that is over"
	}
	st.Notes = append(st.Notes, fmt.Sprintf("configuration: refused at %s, the one before stays in force: %s; %s",
		r.at.Format(time.RFC3339), strings.ReplaceAll(r.err.Error(), "\n", "; "), remedy))
}

// AddTo adds the counters to a snapshot.
func (r *Reloads) AddTo(s *report.Snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Reloads = map[string]uint64{"done": r.done, "refused": r.refused}
}

// Backoff spaces out attempts after failures.
type Backoff struct {
	pause time.Duration // 0: the last did not fail
	until time.Time
	said  string // the latest error
}

// Bounds of the pause between attempts; it doubles with each failure.
const (
	leastBackoff = time.Second
	mostBackoff  = 5 * time.Minute
)

// Over reports whether it is time for an attempt.
func (b *Backoff) Over(now time.Time) bool { return !now.Before(b.until) }

// Note records the outcome of an attempt, and reports whether it is an error other than the previous one.
func (b *Backoff) Note(err error, now time.Time) bool {
	if err == nil {
		*b = Backoff{}
		return false
	}
	b.pause = min(max(2*b.pause, leastBackoff), mostBackoff)
	b.until = now.Add(b.pause)
	news := b.said != err.Error()
	b.said = err.Error()
	return news
}
