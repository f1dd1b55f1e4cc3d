package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/lab/demo"
)

// demoVerbs lists the verbs that need package testnet.
func demoVerbs() []func(*env) *cobra.Command { return []func(*env) *cobra.Command{newDemo, newBench} }

func newDemo(e *env) *cobra.Command {
	var rounds int
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show everything on four hosts made for the purpose",
		Long: `Demo makes four hosts out of network namespaces, runs gateways on three of them
and ordinary programs on all, and prints a table of what was carried, what stayed
native and why, with direct TCP beside it. It kills a gateway in the middle. The
exit status is 1 if anything is not as it should be. It cleans up behind itself.
Without root it runs the same gateway on hosts in memory.`,
		Args:    cobra.NoArgs,
		GroupID: groupVerbs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			opts := demo.Options{Out: e.stdout, Rounds: rounds}
			if os.Geteuid() != 0 {
				fmt.Fprintln(e.stdout, "Without root there are no network namespaces and no eBPF: hosts in memory instead.")
				return demo.RunInMemory(ctx, opts)
			}
			return demo.Run(ctx, opts)
		},
	}
	c.Flags().IntVar(&rounds, "rounds", 3, "times each measurement is taken, both ways")
	return c
}
