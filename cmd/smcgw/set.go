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
