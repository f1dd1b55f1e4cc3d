package main

import "github.com/spf13/cobra"

func newBench(e *env) *cobra.Command {
	var p peerBench
	c := &cobra.Command{
		Use:   "bench",
		Short: "Compare carriers with plain TCP",
		Long: `Bench --peer compares plain TCP, every carrier between the running gateways of two
hosts, and rings in process that these carriers join, in interleaved rounds: throughput
each way, latency, connections per second, processor time, and memory of idle
connections. On the other host "smcgw bench --serve" must run; it prints the token that
this one needs. While it lasts, both gateways have a rule for the port of the
measurement, which needs the same permission as "smcgw off". Each value is from
connections that the gateway says were carried as claimed; what cannot be carried says
why.

The output is medians with their spread, and where plain TCP wins.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			switch {
			case p.serve && p.host != "":
				return usagef("bench: one of --peer and --serve")
			case p.serve:
				return p.runServe(ctx, e)
			case p.host != "":
				return p.run(ctx, e)
			default:
				return usagef("bench: --peer HOST or --serve is needed")
			}
		},
	}
	p.register(c.Flags())
	return withSocket(e, verb(e, c))
}
