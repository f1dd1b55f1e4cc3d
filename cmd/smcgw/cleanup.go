package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway"
	"github.com/smcgw/smcgw/gateway/admin"
)

func newCleanup(e *env) *cobra.Command {
	var configPath string
	c := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove what a daemon that died may have left",
		Long: `Cleanup removes the sockets in files of a daemon that did not stop properly; all
else went with its processes. It says what it has removed, can be repeated, and
refuses while a daemon runs: at the socket, and without -c and --socket any in
this network namespace.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := e.configFor(configPath)
			if err != nil {
				return err
			}
			cfg.Admin = cmp.Or(e.socket, cfg.Admin)
			removed, err := gateway.Cleanup(cfg)
			if err == nil && configPath == "" && e.socket == "" {
				err = e.othersHere(cmd.Context())
			}
			if err != nil && len(removed) == 0 {
				return err
			}
			msg := fmt.Sprintf("nothing is left of a gateway at %s and in %s; of one with another configuration: -c FILE", cfg.Admin, cfg.ShmDir)
			if len(removed) > 0 {
				msg = "removed " + strings.Join(removed, ", ")
			}
			return errors.Join(e.done(admin.Result{Verb: "cleanup", Message: msg, Count: len(removed)}), err)
		},
	}
	addConfigFlag(c, &configPath, "")
	return withSocket(e, verb(e, c))
}

// othersHere fails if gateways with another configuration run in this network namespace.
func (e *env) othersHere(ctx context.Context) error {
	found, err := e.gateways(ctx)
	if err != nil {
		return err
	}
	var alive []error
	for _, g := range found {
		if g.Here {
			alive = append(alive, fmt.Errorf("%w: %v; nothing of it is removed", admin.ErrDaemonAlive, g))
		}
	}
	return errors.Join(alive...)
}
