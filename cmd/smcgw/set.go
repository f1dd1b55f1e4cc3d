package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway/admin"
)

func newSet(e *env) *cobra.Command {
	return withSocket(e, verb(e, &cobra.Command{
		Use:   "set NAME VALUE",
		Short: "Change a setting of the running daemon",
		Long: `Set changes how the daemon works, until it ends or reads its configuration again;
the file is not changed. NAME is one of:

  log.level        debug, info, warn or error: what daemon and guardian log
  log.access       off, carried or all: which connections have a line each
  rollout.percent  the share of the connections that is carried, such as 25%

NAME=VALUE is the same as NAME VALUE.`,
		Example: "  smcgw set log.level debug\n  smcgw set rollout.percent=25%",
		Args: func(_ *cobra.Command, args []string) error {
			names, args := admin.Settings(), setting(args)
			switch {
			case len(args) != 2:
				return usagef("set takes a name and a value: smcgw set log.level debug")
			case !admin.IsSetting(args[0]):
				return usagef("%q cannot be set, but %s%s", args[0], strings.Join(names, ", "), meant(args[0], names))
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			switch {
			case len(args) == 0:
				return admin.Settings(), cobra.ShellCompDirectiveNoFileComp
			case len(args) == 1 && args[0] == "log.level":
				return []string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c := e.reach()
			defer c.Close()
			args = setting(args)
			return e.answered(c.Set(cmd.Context(), admin.Setting{Name: args[0], Value: args[1]}))
		},
	}))
}

// setting splits NAME=VALUE.
func setting(args []string) []string {
	if len(args) != 1 {
		return args
	}
	return strings.SplitN(args[0], "=", 2)
}

func newReload(e *env) *cobra.Command {
	var replace bool
	c := &cobra.Command{
		Use:   "reload",
		Short: "Read the configuration again, or let a newer program take over",
		Long: `Reload has the gateway read its configuration again, as SIGHUP does, and says
whether it is in force. If the installed program is not the one that runs, as after an
upgrade, or if a change needs it, a new gateway takes over instead, and carried
connections continue. With --replace one takes over in any case. A change of admin takes
a stop and a start.

What fails leaves the running gateway as it was.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := e.reach()
			defer c.Close()
			return e.answered(c.Reload(cmd.Context(), replace))
		},
	}
	c.Flags().BoolVar(&replace, "replace", false, "have a new gateway take over")
	return withSocket(e, verb(e, c))
}
