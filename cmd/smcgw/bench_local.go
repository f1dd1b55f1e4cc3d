package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/smcgw/smcgw/internal/testnet/bench"
	"github.com/smcgw/smcgw/internal/testnet/bench/report"
)

// localBench are the flags of bench --local.
type localBench struct {
	wanted   bool
	quick    bool
	ratios   bool
	rounds   int
	duration time.Duration
	only     []string
	variants []string
	chart    string

	congestion string
}

func (l *localBench) register(fs *pflag.FlagSet) {
	fs.BoolVar(&l.wanted, "local", false, "compare on hosts made on this machine")
	fs.BoolVar(&l.quick, "quick", false, "with --local: only the works of the targets P1 to P5, fewer rounds")
	fs.BoolVar(&l.ratios, "ratios", false, "with --local: a last line of JSON with the ratios of P1 to P5; fail if one is missing")
	fs.IntVar(&l.rounds, "rounds", 0, "with --local: rounds (default 7, or 5 with --quick)")
	fs.DurationVar(&l.duration, "duration", time.Second, "with --local: of a run")
	fs.StringSliceVar(&l.only, "only", nil, "with --local: only these works")
	fs.StringSliceVar(&l.variants, "variants", nil, "with --local: only these variants")
	fs.StringVar(&l.congestion, "congestion-control", "", "with --local: of TCP on all hosts (default the machine's)")
	fs.StringVar(&l.chart, "chart", "", "write a chart to this SVG file")
}

// run compares and prints. What happens meanwhile goes to standard error.
func (l *localBench) run(ctx context.Context, e *env) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := bench.Run(ctx, bench.Options{
		Quick: l.quick, Rounds: l.rounds, Duration: l.duration, Only: l.only, Variants: l.variants, CongestionControl: l.congestion,
		Log: e.stderr, Command: "smcgw " + strings.Join(os.Args[1:], " "),
	})
	if errors.Is(err, bench.ErrRoot) {
		return fmt.Errorf("bench --local: %w", err)
	}
	if err != nil {
		return err
	}
	if e.json {
		err = r.JSON(e.stdout)
	} else {
		err = r.Text(e.stdout)
	}
	if err == nil && l.chart != "" {
		err = writeChart(l.chart, r)
	}
	if err == nil && l.ratios {
		err = bench.Ratios(r, e.stdout, e.stderr)
	}
	return err
}

// writeChart writes the chart of a report to a file.
func writeChart(file string, r *report.Report) error {
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	err = errors.Join(r.SVG(f), f.Close())
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	return nil
}
