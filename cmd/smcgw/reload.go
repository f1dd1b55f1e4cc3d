package main

import (
	"github.com/spf13/cobra"
)

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
