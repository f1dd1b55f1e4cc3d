package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway"
	"github.com/smcgw/smcgw/gateway/admin"
)

func newCleanup(e *env) *cobra.Command {
	var configPath string
	var orphaned bool
	c := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove what a daemon that died may have left",
		Long: `Cleanup removes the sockets in files of a daemon that did not stop properly; all
else went with its processes. It can be repeated, and it refuses while a daemon runs.`,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := e.configFor(configPath)
			if err != nil {
				return err
			}
			if e.socket != "" {
				cfg.Admin = e.socket
			}
			err = gateway.Cleanup(cfg)
			if orphaned && errors.Is(err, admin.ErrDaemonAlive) {
				return e.done(admin.Result{Verb: "cleanup", Message: "a daemon is running; nothing to clean up"})
			}
			if err != nil {
				return err
			}
			return e.done(admin.Result{Verb: "cleanup", Message: "clean"})
		},
	}
	addConfigFlag(c, &configPath, "")
	c.Flags().BoolVar(&orphaned, "if-orphaned", false, "succeed without doing anything while a daemon runs")
	return withSocket(e, verb(e, c))
}
