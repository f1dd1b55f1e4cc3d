package main

import (
	"github.com/spf13/cobra"
)

func newBench(e *env) *cobra.Command {
	var local localBench
	c := &cobra.Command{
		Use:   "bench",
		Short: "Compare carriers with plain TCP",
		Long: `Bench --local makes hosts out of network namespaces on this machine, which takes
root, and does the same work on them in interleaved rounds: over plain TCP, through
chains of proxies, carried by shared memory and by RoCEv2, with action auto, and
past a gateway that does not select it. It prints medians with their spread, and
where plain TCP wins.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !local.wanted {
				return usagef("bench needs --local")
			}
			return local.run(cmd.Context(), e)
		},
	}
	local.register(c.Flags())
	return verb(e, c)
}
