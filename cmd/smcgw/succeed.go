package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway/process"
)

// newSucceed is the process between a gateway and its successor, which takes over from it.
func newSucceed(*env) *cobra.Command {
	var configPath string
	c := &cobra.Command{
		Use:    process.SuccessorVerb,
		Short:  "Start a gateway that takes over (started by the gateway that runs)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			process.RequireNamespace()
			return process.StartDetached([]string{"up", "--takeover", "-c", configPath}, os.Stdin)
		},
	}
	addConfigFlag(c, &configPath, "")
	return c
}
