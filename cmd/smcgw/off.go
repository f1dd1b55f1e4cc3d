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
	"github.com/smcgw/smcgw/gateway/machine"
	"github.com/smcgw/smcgw/gateway/process"
)

// switchPatience is how long each daemon may take to switch before only the file is written, and how long the file may
// take before only the daemons are told.
const switchPatience = 3 * time.Second

func newOff(e *env) *cobra.Command {
	return newSwitch(e, true, &cobra.Command{
		Use:   "off",
		Short: "Kill switch: leave all new connections native",
		Long: `Off makes all new connections native, at once and until "smcgw on", also over
restarts. Connections that are carried go on, unless --now has them reset; those
in process go back to the kernel. The switch is a file, which needs no daemon.

Without flags it switches all gateways of this machine, whatever their
configuration, mode and network namespace: it tells those that run, and fails if
it missed one. With -c or --socket (which needs its daemon) it switches the one that
is named, if that has a state_dir of its own, and otherwise all.`,
	})
}

// newSwitch makes the verbs off and on.
func newSwitch(e *env, off bool, c *cobra.Command) *cobra.Command {
	var configPath string
	var now bool
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if configPath == "" && e.socket == "" {
			return e.switchMachine(cmd.Context(), off, now)
		}
		cfg, err := e.configFor(configPath)
		if err != nil {
			return err
		}
		return e.switchOne(cmd.Context(), cfg, off, now, configPath != "")
	}
	addConfigFlag(c, &configPath, "")
	if off {
		c.Flags().BoolVar(&now, "now", false, "reset the connections that are carried")
	}
	return withSocket(e, verb(e, c))
}

// tellOff tells one daemon to switch off or on.
func tellOff(ctx context.Context, c *admin.Client, off, now bool) (admin.Result, error) {
	if now {
		return c.OffNow(ctx)
	}
	return c.SetOff(ctx, off)
}

// switchOne switches the named gateway: it tells the daemon, and writes the file if its configuration was given.
func (e *env) switchOne(ctx context.Context, cfg config.Config, off, now, placed bool) error {
	ctx, cancel := context.WithTimeout(ctx, switchPatience)
	defer cancel()
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

// switchMachine switches all gateways of the machine: running ones are told, later ones find the file.
func (e *env) switchMachine(ctx context.Context, off, now bool) error {
	flag := e.machineOff
	patience, cancel := context.WithTimeoutCause(ctx, switchPatience, fmt.Errorf("%s: its disk or server does not answer", flag.Path()))
	defer cancel()
	errFlag := new(process.Lane).Do(patience, func() error { return flag.Set(off) })
	found, err := e.gateways(ctx)
	said, missed := machine.Tell(ctx, found, switchPatience, func(ctx context.Context, c *admin.Client) (admin.Result, error) {
		return tellOff(ctx, c, off, now)
	})
	missed = append([]error{errFlag, err}, missed...)
	told := len(found)
	if told == 0 { // the daemon's user sees none, but may ask the one at the usual socket
		res, err := e.tellUsual(ctx, off, now)
		switch {
		case err == nil:
			said, told = append(said, res.Message), 1
		case !admin.Absent(err):
			missed = append(missed, err)
		case errFlag == nil:
			said = append(said, switchMessage(off, flag, "all that are started"))
		}
	}
	if len(said) > 0 {
		err = e.done(admin.Result{Verb: switchName(off), Message: strings.Join(said, "\n"), Count: told})
		missed = append(missed, err)
	}
	if err := errors.Join(missed...); err != nil {
		return &exitError{exitFailed, err} // others may have answered
	}
	return nil
}

// tellUsual tells the daemon that the other verbs ask.
func (e *env) tellUsual(ctx context.Context, off, now bool) (admin.Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, switchPatience, fmt.Errorf("%s: its disk or server does not answer", e.service))
	defer cancel()
	at, err := process.Through(ctx, new(process.Lane), func() (string, error) { return e.daemonAt(), nil })
	if err != nil {
		return admin.Result{}, err
	}
	c := admin.NewClient(at)
	defer c.Close()
	return tellOff(ctx, c, off, now)
}

func switchName(off bool) string {
	if off {
		return "off"
	}
	return "on"
}

// switchMessage describes the effect of a switch without a daemon.
func switchMessage(off bool, flag admin.OffFlag, which string) string {
	if off {
		return fmt.Sprintf("no daemon answers; %s keeps %s off", flag.Path(), which)
	}
	return fmt.Sprintf("no daemon answers; %s is gone", flag.Path())
}

func newOn(e *env) *cobra.Command {
	return newSwitch(e, false, &cobra.Command{
		Use:   "on",
		Short: `Undo "smcgw off"`,
	})
}
