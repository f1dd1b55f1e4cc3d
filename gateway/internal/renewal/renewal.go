package renewal

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
)

// Renewal has another configuration take effect in a gateway, or another program in its
// place. Its fields are set before the first use.
type Renewal struct {
	Log     *slog.Logger
	Apply   func(config.Config) error     // puts a configuration in force, whole or not at all
	Reloads *Reloads                      // what came of that
	Load    func() (config.Config, error) // nil: the configuration is not of a file
	Follows func(config.Config) error     // whether a gateway with a configuration can take over; nil: any can
	Program *process.Program              // nil: it cannot be started again
	Manager *process.ServiceManager

	one sync.Mutex // the manager hears of one reload at a time
}

var (
	errNoFile    = errors.New("the configuration is not of a file")
	errNoProgram = errors.New("this gateway cannot start another one")
)

// Loop reads the configuration again for each signal, until ctx ends.
func (r *Renewal) Loop(ctx context.Context, signals <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		read := make(chan struct{})
		go func() {
			defer close(read)
			_ = r.Again() // which the log and the status tell
		}()
		select {
		case <-read:
		case <-ctx.Done(): // a file on a server that does not answer is waited for without a limit
			return
		}
	}
}

// Again reads the configuration and puts it in force, whole or not at all.
func (r *Renewal) Again() error {
	if r.Load == nil {
		return errNoFile
	}
	r.one.Lock()
	defer r.one.Unlock()
	r.Manager.Reloading()
	defer r.Manager.Ready()
	cfg, err := r.Load()
	if err == nil {
		err = r.Apply(cfg)
	}
	if err != nil {
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

// Successor starts the installed program, if it is another one than runs, or always.
func (r *Renewal) Successor(always bool) (*process.Successor, error) {
	if r.Program == nil || r.Load == nil {
		if always {
			return nil, errNoProgram
		}
		return nil, nil
	}
	replaced, err := r.Program.Replaced()
	if err != nil || !replaced && !always {
		return nil, err
	}
	cfg, err := r.Load()
	if err == nil && r.Follows != nil {
		err = r.Follows(cfg)
	}
	if err != nil { // it would only end
		return nil, r.refused(err)
	}
	if err := process.CanSucceed(); err != nil {
		return nil, err
	}
	r.Log.Info("starting a gateway that takes over", "program", r.Program.Path, "replaced", replaced)
	return r.Program.Start()
}
