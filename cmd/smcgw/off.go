package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

// switchPatience is how long a daemon may take to switch before the file alone
// must do.
const switchPatience = 3 * time.Second

func newOff(e *env) *cobra.Command {
	return newSwitch(e, true, &cobra.Command{
		Use:   "off",
		Short: "Kill switch: leave all new connections native",
		Long: `Off makes all new connections native, at once and until "smcgw on", also over
restarts. Connections that are carried go on, unless --now has them reset. It
needs no running daemon: the switch is a file in the state directory.`,
	})
}

// newSwitch makes the verbs off and on.
func newSwitch(e *env, off bool, c *cobra.Command) *cobra.Command {
	var configPath, stateDir string
	var now bool
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := e.configFor(configPath)
		if err != nil {
			return err
		}
		named := configPath != "" || stateDir != ""
		if stateDir != "" {
			cfg.StateDir = stateDir
		}
		return e.throwSwitch(cmd.Context(), cfg, off, now, named)
	}
	addConfigFlag(c, &configPath, "")
	if off {
		c.Flags().BoolVar(&now, "now", false, "reset the connections that are carried")
	}
	c.Flags().StringVar(&stateDir, "state-dir", "", "state directory of the gateway (default "+defaultConfig().StateDir+")")
	return withSocket(e, verb(e, c))
}

// throwSwitch tells the daemon, and writes the file if there is none to tell
// or the place of the file was named.
func (e *env) throwSwitch(ctx context.Context, cfg config.Config, off, now, named bool) error {
	ctx, cancel := context.WithTimeout(ctx, switchPatience)
	defer cancel()
	c := e.client(cfg.Admin)
	defer c.Close()
	tell := func() (admin.Result, error) { return c.SetOff(ctx, off) }
	if now {
		tell = func() (admin.Result, error) { return c.OffNow(ctx) }
	}
	res, err := tell()
	gone := errors.Is(err, admin.ErrDaemonUnreachable)
	if err != nil && !gone {
		return err
	}
	flag := admin.NewOffFlag(cfg.StateDir)
	if gone || named {
		if err := flag.Set(off); err != nil {
			return err
		}
	}
	if gone {
		res = admin.Result{Verb: switchName(off), Message: switchMessage(off, flag)}
	}
	return e.done(res)
}

func switchName(off bool) string {
	if off {
		return "off"
	}
	return "on"
}

// switchMessage says what a switch without a daemon means.
func switchMessage(off bool, flag admin.OffFlag) string {
	if off {
		return fmt.Sprintf("no daemon answers; %s keeps the next one off", flag.Path())
	}
	return fmt.Sprintf("no daemon answers; %s is gone, the next one starts as configured", flag.Path())
}
