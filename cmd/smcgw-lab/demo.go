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
loopback to shared memory, beside plain TCP, without any privilege. Without root that is
all. As root it makes four hosts out of network namespaces, runs gateways on three of
them and ordinary programs on all, and prints a table of what was carried, what stayed
native and why, with direct TCP beside it. It kills a gateway in the middle. The
exit status is 1 if anything is not as it should be. It cleans up after itself.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			opts := demo.Options{Out: l.stdout, Rounds: rounds}
			if opts.Executable, err = l.gateway(); err != nil {
				return err
			}
			root := os.Geteuid() == 0
			shown := demo.RunInProcess(cmd.Context(), opts)
			switch {
			case root && errors.Is(shown, demo.ErrNoPrograms):
				shown = nil
			case shown != nil && !errors.Is(shown, demo.ErrExpectation):
				return shown
			}
			fmt.Fprintln(l.stdout)
			if !root {
				fmt.Fprintln(l.stdout, "As root it goes on with gateways on four hosts, which are network namespaces of this machine.")
				return shown
			}
			return errors.Join(shown, demo.Run(cmd.Context(), opts))
		},
	}
	c.Flags().IntVar(&rounds, "rounds", 3, "times each measurement is taken, both ways")
	return c
}
