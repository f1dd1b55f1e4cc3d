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

// newSpareLegs is the process that replaces that one when it dies.
func newSpareLegs(*env) *cobra.Command {
	return &cobra.Command{
		Use:    process.SpareVerb,
		Short:  "Wait for the end of keep-legs, and take its place (started by keep-legs)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return process.SpareLegs() },
	}
}
