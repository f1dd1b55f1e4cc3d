package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/lab/demo"
)

func (l *laboratory) demo() *cobra.Command {
	var rounds int
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show programs promoted on this host, and everything on four hosts made for the purpose",
		Long: `Demo begins with programs of this machine: smcgw run promotes their connections over
loopback to shared memory, beside plain TCP, without any privilege. Then it makes four hosts out of network namespaces, runs gateways on three of them
and ordinary programs on all, and prints a table of what was carried, what stayed
native and why, with direct TCP beside it. It kills a gateway in the middle. The
exit status is 1 if anything is not as it should be. It cleans up after itself.
Without root it runs the same gateway on hosts in memory.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			opts := demo.Options{Out: l.stdout, Rounds: rounds}
			if opts.Executable, err = l.gateway(); err != nil {
				return err
			}
			shown := demo.RunInProcess(cmd.Context(), opts)
			if shown != nil && !errors.Is(shown, demo.ErrExpectation) {
				return shown
			}
			fmt.Fprintln(l.stdout)
			if os.Geteuid() != 0 {
				fmt.Fprintln(l.stdout, "Without root there are no network namespaces and no eBPF: hosts in memory instead.")
				return errors.Join(shown, demo.RunInMemory(cmd.Context(), opts))
			}
			return errors.Join(shown, demo.Run(cmd.Context(), opts))
		},
	}
	c.Flags().IntVar(&rounds, "rounds", 3, "times each measurement is taken, both ways")
	return c
}
