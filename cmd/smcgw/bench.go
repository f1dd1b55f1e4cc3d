package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/lab/bench/report"
)

// benchFlags are those of every way to compare.
type benchFlags struct {
	rounds   int
	duration time.Duration
	chart    string
}

func newBench(e *env) *cobra.Command {
	var flags benchFlags
	var peer peerBench
	var local localBench
	c := &cobra.Command{
		Use:   "bench",
		Short: "Compare carriers with plain TCP",
		Long: `Bench --peer compares plain TCP and every carrier between the gateways of two hosts
that run, in interleaved rounds: throughput each way, latency, connections per
second and processor time. On the other host "smcgw bench --serve" must run; it
prints the token that this one needs. On both hosts the gateway is asked to treat
the one port of the measurement specially for as long as it lasts, which takes
the right that "smcgw off" takes. Each value is from connections that the gateway
says were carried as claimed; what cannot be carried says why.

Bench --local makes hosts out of network namespaces on this machine, which takes
root, and does the same work on them in interleaved rounds: over plain TCP, through
chains of proxies, carried by shared memory and by RoCEv2, with action auto, and
past a gateway that does not select it. With --profile every work is done once
more while perf(1) looks where the processors' time goes: the output has a table,
and the directory a file of stacks for each, as tools for flame graphs read them.

The output is medians with their spread, and where plain TCP wins.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop) // a second signal ends it at once
			switch ways := count(local.wanted, peer.serve, peer.host != ""); {
			case ways > 1:
				return usagef("bench: one of --local, --peer and --serve")
			case local.wanted:
				return local.run(ctx, e, flags)
			case peer.serve:
				return peer.runServe(ctx, e)
			case peer.host != "":
				return peer.run(ctx, e, flags)
			default:
				return usagef("bench: --local, --peer HOST or --serve is needed")
			}
		},
	}
	c.Flags().IntVar(&flags.rounds, "rounds", 0, "how often everything is measured (default 5; 7 with --local)")
	c.Flags().DurationVar(&flags.duration, "duration", 0, "of one measurement (default 2s; 1s with --local)")
	c.Flags().StringVar(&flags.chart, "chart", "", "write a chart to this SVG file")
	peer.register(c.Flags())
	local.register(c.Flags())
	return withSocket(e, verb(e, c))
}

// count tells how many are true.
func count(conditions ...bool) (n int) {
	for _, c := range conditions {
		if c {
			n++
		}
	}
	return n
}

// showReport prints a report and writes its chart.
func (e *env) showReport(r *report.Report, chart string) error {
	show := r.Text
	if e.json {
		show = r.JSON
	}
	if err := show(e.stdout); err != nil {
		return printed(err)
	}
	if chart == "" {
		return nil
	}
	f, err := os.Create(chart)
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	return errors.Join(r.SVG(f), f.Close())
}
