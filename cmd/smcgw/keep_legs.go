package main

import (
	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway"
)

// newKeepLegs is the process that up starts in the namespace of the legs.
func newKeepLegs(*env) *cobra.Command {
	return &cobra.Command{
		Use:    gateway.LegsVerb,
		Short:  "Make sockets in the gateway's own network namespace (started by up)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return gateway.KeepLegs() },
	}
}
