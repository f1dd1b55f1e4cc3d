package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway"
)

func newUp(e *env) *cobra.Command {
	var configPath string
	var alone bool
	c := &cobra.Command{
		Use:   "up",
		Short: "Run the gateway in the foreground",
		Long: `Up runs the gateway in this network namespace until it gets SIGTERM or SIGINT.
SIGHUP has it read its configuration again: mode, policy and some limits change
while it runs. It is two processes: a small guardian, and the daemon it outlives
for a second, so that the connections of a daemon that dies end promptly.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := e.confine(); err != nil {
				return err
			}
			hup := make(chan os.Signal, 1)
			signal.Notify(hup, syscall.SIGHUP) // which ends nothing, from here on
			defer signal.Stop(hup)
			cfg, err := e.loadConfig(configPath)
			if err != nil {
				return err
			}
			// Whoever reads our log may go away; the connections we carry must not.
			signal.Ignore(syscall.SIGPIPE)
			load := func() (gateway.Config, error) { return e.loadConfig(configPath) }
			if alone {
				return e.daemon(cmd.Context(), cfg, gateway.RunOptions{Reload: hup, Load: load})
			}
			return e.supervised(cmd.Context(), cfg, gateway.RunOptions{Reload: hup, Load: load})
		},
	}
	c.GroupID = groupVerbs
	addConfigFlag(c, &configPath, gateway.DefaultConfigPath)
	c.Flags().BoolVar(&alone, "no-guardian", false, "run without a guardian (for debuggers)")
	return c
}

// supervised is the guardian in one process and the daemon in the other.
func (e *env) supervised(ctx context.Context, cfg gateway.Config, opts gateway.RunOptions) error {
	log := startLog(e, cfg.Log)
	defer log.close()
	ward, status, err := gateway.Supervise(ctx, gateway.SuperviseOptions{
		Logger: log.Logger, Tidy: func() error { return gateway.Cleanup(cfg) },
	})
	if err != nil {
		return err
	}
	if ward == nil { // the guardian, and its daemon has ended
		if status != exitOK {
			return &exitError{status, errSaid}
		}
		return nil
	}
	defer ward.Close()
	opts.Supervisor = ward
	return e.daemon(ctx, cfg, opts)
}

func (e *env) daemon(ctx context.Context, cfg gateway.Config, opts gateway.RunOptions) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log := startLog(e, cfg.Log)
	defer log.close()
	manager, err := gateway.NewServiceManager(e.getenv, log.Logger)
	if err != nil {
		return err
	}
	opts.Manager = manager
	opts.Logger, opts.LogDropped, opts.Version = log.Logger, log.out.Dropped, buildVersion()
	return gateway.Run(ctx, cfg, opts)
}
