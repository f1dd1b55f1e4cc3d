package main

import (
	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway/process"
)

// newKeepLegs is the process that up starts in the namespace of the legs.
func newKeepLegs(*env) *cobra.Command {
	return &cobra.Command{
		Use:    process.LegsVerb,
		Short:  "Make sockets in the gateway's own network namespace (started by up)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return process.KeepLegs() },
	}
}
