package gateway

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
)

// renewal has another configuration take effect in a gateway, or another program in its
// place.
type renewal struct {
	*gateway

	load    func() (config.Config, error) // nil: the configuration is not of a file
	program *process.Program              // nil: it cannot be started again
	manager *process.ServiceManager

	one sync.Mutex // the manager hears of one reload at a time
}

var (
	errNoFile    = errors.New("the configuration is not of a file")
	errNoProgram = errors.New("this gateway cannot start another one")
)

// loop reads the configuration again for each signal, until ctx ends.
func (r *renewal) loop(ctx context.Context, signals <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			_ = r.again() // which the log and the status tell
		}
	}
}

// again reads the configuration and puts it in force, whole or not at all.
func (r *renewal) again() error {
	if r.load == nil {
		return errNoFile
	}
	r.one.Lock()
	defer r.one.Unlock()
	r.manager.Reloading()
	defer r.manager.Ready()
	cfg, err := r.load()
	if err == nil {
		err = r.reload(cfg)
	}
	r.reloads.note(err, time.Now())
	if err != nil {
		r.log.Error("configuration refused, the one before stays in force", "error", err)
	} else {
		r.log.Info("configuration in force", "mode", cfg.Mode, "rules", len(cfg.Policy))
	}
	return err
}

// successor starts the installed program, if it is another one than runs, or always.
func (r *renewal) successor(always bool) (*process.Successor, error) {
	if r.program == nil || r.load == nil {
		if always {
			return nil, errNoProgram
		}
		return nil, nil
	}
	replaced, err := r.program.Replaced()
	if err != nil || !replaced && !always {
		return nil, err
	}
	if _, err := r.load(); err != nil { // it would only end
		return nil, err
	}
	r.log.Info("starting a gateway that takes over", "program", r.program.Path, "replaced", replaced)
	return r.program.Start()
}

// Reload implements admin.Control.
func (g *gateway) Reload() error { return g.renewal.again() }

// Successor implements admin.Control.
func (g *gateway) Successor(always bool) (admin.Successor, error) {
	s, err := g.renewal.successor(always)
	if s == nil || err != nil {
		return nil, err
	}
	return s, nil
}
