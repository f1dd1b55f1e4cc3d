package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/smcgw/smcgw/lab/bench"
	"github.com/smcgw/smcgw/lab/bench/paper"
)

// comparison is a command line of bench.
type comparison struct {
	bench.Options
	ratios, json bool
	chart        string
}

func (l *laboratory) bench() *cobra.Command {
	var o comparison
	c := &cobra.Command{
		Use:   "bench",
		Short: "Compare ways to carry connections on hosts made for the purpose",
		Long: `Bench makes hosts out of network namespaces on this machine, which takes root,
and does the same work on them in interleaved rounds: over plain TCP, through
chains of proxies, carried by shared memory and by RoCEv2, with action auto, and
past a gateway that does not select it. With --profile every work is done once
more while perf(1) looks where the processors' time goes: the output has a table,
and the directory a file of stacks for each, as tools for flame graphs read them.

The output is medians with their spread, and where plain TCP wins. What is measured
when a signal comes is printed all the same.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.Executable, err = l.gateway(); err != nil {
				return err
			}
			o.Log, o.Command = l.stderr, "smcgw-lab "+strings.Join(os.Args[1:], " ")
			r, err := bench.Run(cmd.Context(), o.Options)
			if r == nil {
				return err
			}
			return errors.Join(err, l.show(r, o))
		},
	}
	o.register(c.Flags())
	return c
}

func (o *comparison) register(fs *pflag.FlagSet) {
	fs.IntVar(&o.Rounds, "rounds", 0, "how often everything is measured (default 7; 5 with --quick)")
	fs.DurationVar(&o.Duration, "duration", time.Second, "of one measurement")
	fs.BoolVar(&o.Quick, "quick", false, "only the works of the targets P1 to P5, fewer rounds")
	fs.BoolVar(&o.ratios, "ratios", false, "a last line of JSON with the ratios of P1 to P5; fail if one is missing")
	fs.StringSliceVar(&o.Only, "only", nil, "only these works")
	fs.StringSliceVar(&o.Variants, "variants", nil, "only these variants")
	fs.DurationVar(&o.Budget, "budget", 0, "begin no round that would not end in this time (default 34m; 7m with --quick)")
	fs.StringVar(&o.Profile, "profile", "", "after the rounds look with perf(1) where processor time goes, and put the stacks into this directory")
	fs.StringVar(&o.CongestionControl, "congestion-control", "", "of TCP on all hosts (default the machine's)")
	fs.StringVar(&o.chart, "chart", "", "write a chart to this SVG file")
	fs.BoolVar(&o.json, "json", false, "print one JSON document")
}

// show prints a report, writes its chart and says its ratios.
func (l *laboratory) show(r *paper.Report, o comparison) (err error) {
	if o.json {
		err = r.JSON(l.stdout)
	} else {
		err = r.Text(l.stdout)
	}
	if err == nil && o.chart != "" {
		err = chart(r, o.chart)
	}
	if err == nil && o.ratios {
		err = bench.Ratios(r, l.stdout, l.stderr)
	}
	return err
}

func chart(r *paper.Report, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	return errors.Join(r.SVG(f), f.Close())
}
