package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
needs no running daemon: the switch is a file.

Without flags it switches all gateways of this machine, whatever their
configuration and network namespace: it tells those that run, and fails if it
missed one. With -c, --socket or --state-dir it switches the one that is named.`,
	})
}

// newSwitch makes the verbs off and on.
func newSwitch(e *env, off bool, c *cobra.Command) *cobra.Command {
	var configPath, stateDir string
	var now bool
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), switchPatience)
		defer cancel()
		if configPath == "" && stateDir == "" && e.socket == "" {
			return e.switchMachine(ctx, off, now)
		}
		cfg, err := e.configFor(configPath)
		if err != nil {
			return err
		}
		if stateDir != "" {
			cfg.StateDir = stateDir
		}
		return e.switchOne(ctx, cfg, off, now, configPath != "" || stateDir != "")
	}
	addConfigFlag(c, &configPath, "")
	if off {
		c.Flags().BoolVar(&now, "now", false, "reset the connections that are carried")
	}
	c.Flags().StringVar(&stateDir, "state-dir", "", "state directory of the gateway (default "+defaultConfig().StateDir+")")
	return withSocket(e, verb(e, c))
}

// tellOff tells one daemon.
func tellOff(ctx context.Context, c *admin.Client, off, now bool) (admin.Result, error) {
	if now {
		return c.OffNow(ctx)
	}
	return c.SetOff(ctx, off)
}

// switchOne switches the gateway that was named: it tells the daemon, and writes the file
// if the place of that was named.
func (e *env) switchOne(ctx context.Context, cfg config.Config, off, now, placed bool) error {
	c := e.client(cfg.Admin)
	defer c.Close()
	res, err := tellOff(ctx, c, off, now)
	gone := errors.Is(err, admin.ErrDaemonUnreachable)
	if err != nil && (!gone || !placed) {
		return err
	}
	flag := admin.NewOffFlag(cfg.StateDir)
	if placed {
		if err := flag.Set(off); err != nil {
			return err
		}
	}
	if gone {
		res = admin.Result{Verb: switchName(off), Message: switchMessage(off, flag, "the next one")}
	}
	return e.done(res)
}

// switchMachine switches all gateways of the machine: those that run are told, those
// that will run find the file.
func (e *env) switchMachine(ctx context.Context, off, now bool) error {
	flag := e.machineOff
	missed := []error{flag.Set(off)}
	found, err := e.gateways(ctx)
	missed = append(missed, err)
	var said []string
	for _, g := range found {
		if g.Socket == "" {
			missed = append(missed, fmt.Errorf("%v was not told: it does not answer, or you are not root; name its -c or --socket", g))
			continue
		}
		c := admin.NewClient(g.Socket)
		res, err := tellOff(ctx, c, off, now)
		c.Close()
		if err != nil {
			missed = append(missed, fmt.Errorf("%v: %w", g, err))
			continue
		}
		said = append(said, fmt.Sprintf("%v: %s", g, res.Message))
	}
	if len(found) == 0 && missed[0] == nil {
		said = append(said, switchMessage(off, flag, "all that are started"))
	}
	if len(said) > 0 {
		err = e.done(admin.Result{Verb: switchName(off), Message: strings.Join(said, "\n"), Count: len(found)})
	}
	return errors.Join(append(missed, err)...)
}

func switchName(off bool) string {
	if off {
		return "off"
	}
	return "on"
}

// switchMessage says what a switch without a daemon means.
func switchMessage(off bool, flag admin.OffFlag, which string) string {
	if off {
		return fmt.Sprintf("no daemon answers; %s keeps %s off", flag.Path(), which)
	}
	return fmt.Sprintf("no daemon answers; %s is gone", flag.Path())
}
