package gateway

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
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
	"github.com/smcgw/smcgw/verbs/shm"
)

// Supervisor keeps the steering alive slightly longer than the daemon, so that the gateway's
// sockets die first and the applications get their reset.
type Supervisor interface {
	// Protect hands duplicates of hold and of the heartbeat map to the guardian and returns
	// when the guardian has them. It is called after the datapath is opened and before the
	// first flow is carried, and again after a Release; the first beat must follow within ten
	// seconds. The caller keeps ownership of the files and must keep them open until Release:
	// a guardian that dies is replaced and receives them again.
	Protect(heartbeat *fdpass.File, hold []*fdpass.File) error
	// Release makes the guardian close its duplicates and returns when it has. It is called
	// after the last flow has ended and before the datapath, or what it carries with, is
	// closed.
	Release() error
}

// RunOptions are the parameters of a daemon besides its configuration.
type RunOptions struct {
	// Logger receives the log. Default: discards it.
	Logger *slog.Logger
	// SetLogLevel changes the level of Logger, for settings and reloads; nil: it is fixed.
	SetLogLevel func(slog.Level)
	// LogDropped returns how many lines Logger has lost; nil: it loses none.
	LogDropped func() uint64
	// Version is the version shown in status.
	Version string
	// Supervisor keeps the steering alive slightly longer than this process; nil: nothing
	// does.
	Supervisor Supervisor
	// Manager is notified once connections are handled, and of what follows; nil: none.
	Manager *process.ServiceManager
	// Reload requests that the configuration be read again with Load. It may differ from the
	// first in mode, policy and some limits. A configuration that is refused changes nothing.
	// Both may be nil.
	Reload <-chan os.Signal
	Load   func() (config.Config, error)
	// Program is the program started to take over from this daemon; nil: none.
	Program *process.Program
	// TakeOver makes this daemon take over from the daemon on the admin socket, if there is
	// one: that one drains, and this one gets new connections.
	TakeOver bool
	// Faults injects faults for tests; nil: none.
	Faults faults.Injector
}

// Run runs the daemon on a real host, after Confine. It opens the datapath in the calling
// thread's network namespace, carries until ctx ends or it has drained, and leaves nothing
// behind. It needs the capabilities of docs/OPERATIONS.md "What it needs".
func Run(ctx context.Context, cfg config.Config, opts RunOptions) error {
	log := opts.logger()
	if err := peers.RequireDescriptors(); err != nil {
		return err
	}
	before, server, err := handover.Begin(ctx, cfg, handover.Options{
		Logger: log, Version: opts.Version, TakeOver: opts.TakeOver, Main: mainProcess(opts.Supervisor),
		Faults: opts.Faults, Die: crash,
	})
	if err != nil {
		return ignoreCanceled(err) // it was told to stop
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
		// The guardian notices a failure, and after at.leave there is nothing to beat for.
		heart := loop.Heart{Write: at.Steering.Heartbeat, Pulse: new(loop.Pulse), Log: slog.New(slog.DiscardHandler)}
		if server, err = before.Yield(ctx, cfg, heart.Run); err != nil {
			return errors.Join(ignoreCanceled(err), at.leave())
		}
		defer func() { _ = server.Close() }()
	}
	d := &daemon{cfg: cfg, opts: opts, log: log, admin: server, before: before, promotion: served}
	return d.run(ctx, at)
}

// cgroupOf returns where cgroup2 is mounted; empty: nowhere.
func cgroupOf(cfg config.Config) string {
	if cfg.CgroupPath != "" {
		return cfg.CgroupPath
	}
	dir, _ := process.CgroupMount()
	return dir
}

// mainProcess returns the process ID of the guardian, which has started this process, or of
// this process if there is none.
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

// quiesce stops accepting connections; offers on the wire fall back as they are answered.
func (g *gateway) quiesce() {
	g.stopping.Store(true)
	g.engine().datagrams().Quiesce(negotiate.ReasonDrained)
	if err := g.steer.SetMode(ebpf.ModeOff); err != nil {
		g.log.Warn("stop offering", "error", err)
	}
}

// Cleanup removes what a daemon that did not stop cleanly may have left behind, and returns
// the names of what it removed: the admin socket, the socket of programs with the library,
// and sockets in shm_dir. Programs, maps, devices and the namespace of the legs end with the
// processes that hold them. The off flag stays, since it is meant to outlive the daemon.
// Cleanup is idempotent, and fails with [admin.ErrDaemonAlive] while a daemon is alive.
func Cleanup(cfg config.Config) (removed []string, err error) {
	return admin.Cleanup(cfg, func() error { return shm.Sweep(cfg.ShmDir) }, func() error { return promotion.Remove(cfg.InProcess.Socket) })
}
