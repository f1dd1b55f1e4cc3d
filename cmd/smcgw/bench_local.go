package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/smcgw/smcgw/lab/bench"
)

// localBench are the flags of bench --local.
type localBench struct {
	wanted   bool
	quick    bool
	ratios   bool
	only     []string
	variants []string

	congestion string
	budget     time.Duration
	profile    string
}

func (l *localBench) register(fs *pflag.FlagSet) {
	fs.BoolVar(&l.wanted, "local", false, "compare on hosts made on this machine")
	fs.BoolVar(&l.quick, "quick", false, "with --local: only the works of the targets P1 to P5, fewer rounds")
	fs.BoolVar(&l.ratios, "ratios", false, "with --local: a last line of JSON with the ratios of P1 to P5; fail if one is missing")
	fs.StringSliceVar(&l.only, "only", nil, "with --local: only these works")
	fs.StringSliceVar(&l.variants, "variants", nil, "with --local: only these variants")
	fs.DurationVar(&l.budget, "budget", 0, "with --local: begin no round that would not end in this time (default 34m; 7m with --quick)")
	fs.StringVar(&l.profile, "profile", "", "with --local: after the rounds look with perf(1) where processor time goes, and put the stacks into this directory")
	fs.StringVar(&l.congestion, "congestion-control", "", "with --local: of TCP on all hosts (default the machine's)")
}

// run compares and prints. What happens meanwhile goes to standard error. What
// is measured when a signal comes is printed all the same.
func (l *localBench) run(ctx context.Context, e *env, flags benchFlags) error {
	duration := flags.duration
	if duration == 0 {
		duration = time.Second
	}
	r, err := bench.Run(ctx, bench.Options{
		Quick: l.quick, Rounds: flags.rounds, Duration: duration, Only: l.only, Variants: l.variants, CongestionControl: l.congestion, Budget: l.budget, Profile: l.profile,
		Log: e.stderr, Command: "smcgw " + strings.Join(os.Args[1:], " "),
	})
	if errors.Is(err, bench.ErrRoot) {
		return fmt.Errorf("bench --local: %w", err)
	}
	if r == nil {
		return err
	}
	if shown := e.showReport(r, flags.chart); shown != nil {
		return errors.Join(err, shown)
	}
	if l.ratios {
		err = errors.Join(err, bench.Ratios(r, e.stdout, e.stderr))
	}
	return err
}
