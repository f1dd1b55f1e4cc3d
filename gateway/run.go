package gateway

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/internal/handover"
	"github.com/smcgw/smcgw/gateway/internal/legs"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/internal/promotion"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/internal/fdpass"
	"github.com/smcgw/smcgw/negotiate"
)

// Supervisor keeps the steering alive a little longer than the daemon, so that
// the gateway's sockets die first and the applications get their reset.
type Supervisor interface {
	// Protect hands duplicates of hold and of the heartbeat map to the
	// guardian and returns when it has them. It is called when the
	// datapath is open and before the first flow is carried, and after a Release; the first beat
	// must follow within ten seconds. The files stay the caller's and must
	// stay open until Release: a guardian that dies is replaced and gets them
	// again.
	Protect(heartbeat *fdpass.File, hold []*fdpass.File) error
	// Release makes the guardian close its duplicates and returns when it has;
	// it is called after the last flow has ended and before the datapath, or what it
	// carries by, is closed.
	Release() error
}

// RunOptions are what a daemon needs besides its configuration.
type RunOptions struct {
	// Logger receives what happens. Default: discards.
	Logger *slog.Logger
	// SetLogLevel changes that of Logger, for settings and reloads; nil: it stays.
	SetLogLevel func(slog.Level)
	// LogDropped counts the lines that Logger has lost; nil: it loses none.
	LogDropped func() uint64
	// Version is what status reports.
	Version string
	// Supervisor keeps the steering alive a little longer than this process;
	// nil: nothing does.
	Supervisor Supervisor
	// Manager is told once connections are looked at, and what follows; nil if none.
	Manager *process.ServiceManager
	// Reload asks for the configuration to be read again by Load, which may be
	// other than the first in mode, policy and some limits. One that is refused
	// changes nothing. Both may be nil.
	Reload <-chan os.Signal
	Load   func() (config.Config, error)
	// Program is started to take over from this daemon; nil: nothing is.
	Program *process.Program
	// TakeOver is to take over from the daemon on the admin socket, if there is one:
	// it drains, and new connections are this daemon's.
	TakeOver bool
	// Faults are those that a test wants; nil: none.
	Faults faults.Injector
}

// Run is the daemon on a real host, after Confine: it opens the datapath in the
// calling thread's network namespace, carries until ctx ends or it has drained, and leaves
// nothing behind. It needs the capabilities of docs/OPERATIONS.md "What it needs".
func Run(ctx context.Context, cfg config.Config, opts RunOptions) error {
	log := opts.logger()
	if err := peers.RequireDescriptors(); err != nil {
		return err
	}
	before, server, err := handover.Begin(ctx, cfg, handover.Options{
		Logger: log, Version: opts.Version, TakeOver: opts.TakeOver, Main: mainProcess(opts.Supervisor),
		BeatEvery: loop.BeatInterval, Faults: opts.Faults, Die: crash,
	})
	if err != nil {
		return ignoreCanceled(err) // it was told to end
	}
	defer before.Close()
	if server != nil {
		defer func() { _ = server.Close() }()
	}
	var ns *legs.Namespace
	if cfg.Steering == config.SwitchOn {
		if ns, err = process.OpenLegs(); err != nil {
			return err
		}
		defer func() { _ = ns.Close() }()
	}
	at, err := openSite(cfg, ns, before, opts)
	if err != nil {
		return err
	}
	served := promotion.New(cfg, promotion.Options{Log: log, Cgroup: cgroupOf(cfg)})
	defer served.Close()
	if err := at.protect(); err != nil {
		return errors.Join(err, at.leave())
	}
	if server == nil {
		if server, err = before.Yield(ctx, cfg, at.beat); err != nil {
			return errors.Join(ignoreCanceled(err), at.leave())
		}
		defer func() { _ = server.Close() }()
	}
	d := &daemon{cfg: cfg, opts: opts, log: log, admin: server, before: before, promotion: served}
	return d.run(ctx, at)
}

// cgroupOf is where cgroup2 is seen; empty: nowhere.
func cgroupOf(cfg config.Config) string {
	if cfg.CgroupPath != "" {
		return cfg.CgroupPath
	}
	dir, _ := process.CgroupMount()
	return dir
}

// mainProcess is the guardian, which has started this process, or this process.
func mainProcess(s Supervisor) int {
	if s == nil {
		return os.Getpid()
	}
	return os.Getppid()
}

func (o RunOptions) logger() *slog.Logger {
	if o.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return o.Logger
}

func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// quiesce takes no new connection; offers on the wire fall back as their answers come.
func (g *gateway) quiesce() {
	g.stopping.Store(true)
	g.engine().datagrams().Quiesce(negotiate.ReasonDrained)
	if err := g.steer.SetMode(ebpf.ModeOff); err != nil {
		g.log.Warn("stop offering", "error", err)
	}
}
