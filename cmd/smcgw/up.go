package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/guardian"
	"github.com/smcgw/smcgw/gateway/process"
)

func newUp(e *env) *cobra.Command {
	var configPath string
	var alone bool
	var opts gateway.RunOptions
	c := &cobra.Command{
		Use:   "up",
		Short: "Run the gateway in the foreground",
		Long: `Up runs the gateway in this network namespace until it gets SIGTERM or SIGINT.
SIGHUP has it read its configuration again: mode, policy and some limits change
while it runs. It is three processes, in mode enforce four: a small guardian, the
daemon it outlives for a second, so that the connections of a daemon that dies end
promptly, one that makes sockets for the daemon in a network namespace of their own,
and a spare for that one.

With --takeover it takes over from the gateway that runs on the same admin socket,
if there is one: that one serves the connections it carries until they end, while
new ones are carried by this one. A takeover that fails at any step leaves the
running gateway as it was. See "Upgrade" in operations/install.md of the documents.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := e.confine(); err != nil {
				return err
			}
			if alone {
				if err := process.Settle(); err != nil {
					return err
				}
			}
			hup := make(chan os.Signal, 1)
			signal.Notify(hup, syscall.SIGHUP) // SIGHUP does not end the process from here on
			defer signal.Stop(hup)
			// Losing the reader of our log must not end the connections we carry.
			signal.Ignore(syscall.SIGPIPE)
			var cfg config.Config
			if replaces, err := guardian.Kept(&cfg); replaces { // the file may have changed by now, or be invalid
				return errors.Join(err, e.supervised(cmd.Context(), cfg, opts))
			}
			cfg, err := config.Effective(configPath)
			if err != nil {
				return e.refuseStart(configPath, err)
			}
			opts.Reload, opts.Load = hup, func() (config.Config, error) { return config.Effective(configPath) }
			program, err := process.OwnProgram("-c", configPath)
			if err != nil {
				return err
			}
			opts.Program = &program
			if alone {
				return e.daemon(cmd.Context(), cfg, opts, process.Notify)
			}
			return e.supervised(cmd.Context(), cfg, opts)
		},
	}
	c.GroupID = groupVerbs
	addConfigFlag(c, &configPath, config.DefaultPath)
	c.Flags().BoolVar(&opts.TakeOver, "takeover", false, "take over from the gateway that runs")
	c.Flags().BoolVar(&alone, "no-guardian", false, "run without a guardian (for debuggers)")
	_ = c.Flags().MarkHidden("no-guardian") // cannot fail: the flag exists
	return c
}

// refuseStart reports what is wrong with a configuration: on a terminal in the format of check, otherwise in lines of
// the log.
func (e *env) refuseStart(path string, err error) error {
	if terminalColumns(e.stderr) != 0 {
		_, err := e.loadConfig(path)
		return err
	}
	log := startLog(e, defaultConfig().Log)
	defer log.close()
	wrong := config.FieldErrors(err)
	for _, fe := range wrong {
		args := []any{"file", path, "field", fe.Path, "error", fe.Msg}
		if fe.Line > 0 {
			args = append(args, "line", fe.Line)
		}
		log.Error("configuration refused", args...)
	}
	if len(wrong) == 0 {
		log.Error("configuration refused", "file", path, "error", err)
	}
	return &exitError{exitFailed, errSaid}
}

// supervised runs the guardian in one process and the daemon in another.
func (e *env) supervised(ctx context.Context, cfg config.Config, opts gateway.RunOptions) error {
	log := startLog(e, cfg.Log)
	defer log.close()
	ward, status, err := guardian.Supervise(ctx, guardian.Options{
		Logger: log.Logger, Level: &log.level, Tidy: func() error { return tidy(cfg) },
		Keep: struct { // kept fields of the configuration
			Admin, ShmDir string
			Log           config.Log
		}{cfg.Admin, cfg.ShmDir, cfg.Log},
	})
	if err != nil {
		return e.failed(log, err)
	}
	if ward == nil { // this is the guardian, whose daemon has ended
		if status != exitOK {
			return &exitError{status, errSaid}
		}
		return nil
	}
	defer ward.Close()
	opts.Supervisor = ward
	opts.SetLogLevel = func(level slog.Level) {
		if err := ward.SetLevel(level); err != nil {
			log.Warn("the guardian logs as before", "error", err)
		}
	}
	return e.daemon(ctx, cfg, opts, ward.Notify)
}

// tidy removes what a dead daemon has left behind, unless another daemon is running.
func tidy(cfg config.Config) error {
	if _, err := gateway.Cleanup(cfg); !errors.Is(err, admin.ErrDaemonAlive) {
		return err
	}
	return nil
}

// daemon runs the gateway; notify sends to its service manager.
func (e *env) daemon(ctx context.Context, cfg config.Config, opts gateway.RunOptions, notify func(string) error) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log := startLog(e, cfg.Log)
	defer log.close()
	manager, err := process.NewServiceManager(log.Logger)
	if err != nil {
		return err
	}
	manager.Through(notify)
	if opts.Faults, err = injector(); err != nil {
		return err
	}
	opts.Manager = manager
	opts.Logger, opts.LogDropped, opts.Version = log.Logger, log.out.Dropped, buildVersion()
	guardians := opts.SetLogLevel
	opts.SetLogLevel = func(level slog.Level) {
		log.level.Set(level)
		if guardians != nil {
			guardians(level)
		}
	}
	if err := gateway.Run(ctx, cfg, opts); err != nil {
		return e.failed(log, err)
	}
	return nil
}

// failed reports why a gateway ends: on a terminal as other verbs do, otherwise in its log.
func (e *env) failed(log *logging, err error) error {
	if terminalColumns(e.stderr) != 0 {
		return err
	}
	log.Error("gateway failed", "error", err)
	return &exitError{exitFailed, errSaid}
}

// newSucceed is the process between a gateway and its successor, which takes over from it.
func newSucceed(*env) *cobra.Command {
	var configPath string
	c := &cobra.Command{
		Use:    process.SuccessorVerb,
		Short:  "Start a gateway that takes over (started by the gateway that runs)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			process.RequireNamespace()
			return process.StartDetached([]string{"up", "--takeover", "-c", configPath}, os.Stdin)
		},
	}
	addConfigFlag(c, &configPath, "")
	return c
}
