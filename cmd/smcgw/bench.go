package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/internal/testnet/bench/report"
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
	c := &cobra.Command{
		Use:   "bench",
		Short: "Compare carriers with plain TCP",
		Long: `Bench --peer compares plain TCP and every carrier between the gateways of two hosts
that run, in interleaved rounds: throughput each way, latency, connections per
second and processor time. On the other host "smcgw bench --serve" must run; it
prints the token that this one needs. On both hosts the gateway is asked to treat
the one port of the measurement specially for as long as it lasts, which takes
the right that "smcgw off" takes. Each value is from connections that the gateway
says were carried as claimed; what cannot be carried says why. The output is
medians with their spread, and where plain TCP wins.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			switch {
			case peer.serve && peer.host != "":
				return usagef("bench: --serve or --peer, not both")
			case peer.serve:
				return peer.runServe(ctx, e)
			case peer.host != "":
				return peer.run(ctx, e, flags)
			default:
				return usagef("bench: --peer HOST or --serve is needed")
			}
		},
	}
	c.Flags().IntVar(&flags.rounds, "rounds", 0, "how often everything is measured (default 5)")
	c.Flags().DurationVar(&flags.duration, "duration", 0, "of one measurement (default 2s)")
	c.Flags().StringVar(&flags.chart, "chart", "", "write a chart to this SVG file")
	peer.register(c.Flags())
	return withSocket(e, verb(e, c))
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
