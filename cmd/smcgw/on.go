package main

import "github.com/spf13/cobra"

func newOn(e *env) *cobra.Command {
	return newSwitch(e, false, &cobra.Command{
		Use:   "on",
		Short: `Undo "smcgw off"`,
	})
}
