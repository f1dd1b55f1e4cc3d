package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/smcgw/smcgw/internal/comparison"
	"github.com/smcgw/smcgw/lab/bench"
)

// comparing holds the options of a bench command line.
type comparing struct {
	bench.Options
	ratios, json bool
	page         string
}

func (l *laboratory) bench() *cobra.Command {
	var o comparing
	c := &cobra.Command{
		Use:   "bench [REPORT...]",
		Short: "Compare ways to carry connections on hosts made for the purpose",
		Long: `Bench makes hosts out of network namespaces on this machine, which takes root,
and does the same work on them in interleaved rounds: over plain TCP, through
two proxies, carried by shared memory and by RoCEv2, with action auto, and
past a gateway that does not select it. With --quick it does only what --ratios
needs, first with cubic and then with bbr. With --smcgw and --other two gateways
are compared, each on hosts of its own, in the same rounds. With --profile works are done
once more while perf(1) looks where the processors' time goes: the directory gets
a table and the samples of each. With --page nothing is measured: the tables of
reports, files of --json, are written into a page that has markers for them.

The output is medians with their spread, and where plain TCP wins. What is measured
when a signal comes is printed all the same.`,
		Args: func(c *cobra.Command, args []string) error {
			if o.page != "" {
				return cobra.MinimumNArgs(1)(c, args)
			}
			return cobra.NoArgs(c, args)
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.page != "" {
				return bench.WritePage(o.page, args)
			}
			if o.Executable, err = l.gateway(); err != nil {
				return err
			}
			if o.Other != "" {
				if o.Other, err = program(o.Other); err != nil {
					return err
				}
			}
			o.Log, o.Command = l.stderr, "smcgw-lab "+strings.Join(os.Args[1:], " ")
			list, err := o.run(cmd.Context())
			if len(list) == 0 {
				return err
			}
			return errors.Join(err, l.show(list, o))
		},
	}
	o.register(c.Flags())
	return c
}

// run compares; it returns one report per congestion control.
func (o *comparing) run(ctx context.Context) ([]*comparison.Report, error) {
	if o.Quick {
		return bench.Quick(ctx, o.Options)
	}
	r, err := bench.Run(ctx, o.Options)
	if r == nil {
		return nil, err
	}
	return []*comparison.Report{r}, err
}

func (o *comparing) register(fs *pflag.FlagSet) {
	fs.IntVar(&o.Rounds, "rounds", 0, "how often everything is measured (default 7; 4 with --quick)")
	fs.DurationVar(&o.Duration, "duration", time.Second, "of one measurement")
	fs.BoolVar(&o.Quick, "quick", false, "only what --ratios needs, with cubic and with bbr")
	fs.BoolVar(&o.ratios, "ratios", false, "a last line of JSON with the ratios that the project aims at; fail if one is missing")
	fs.StringVar(&o.Other, "other", "", "another smcgw to compare with: its ways have names that begin with other-")
	fs.StringSliceVar(&o.Only, "only", nil, "only these works")
	fs.StringSliceVar(&o.Variants, "variants", nil, "only these variants")
	fs.DurationVar(&o.Budget, "budget", 0, "begin no round that would not end in this time (default 34m; 8m40s with --quick)")
	fs.StringVar(&o.Profile, "profile", "", "after the rounds look with perf(1) where processor time goes, and put that into this directory")
	fs.StringVar(&o.CongestionControl, "congestion-control", "", "of TCP on all hosts (default the machine's; cubic and then bbr with --quick)")
	fs.StringVar(&o.page, "page", "", "write the tables of reports into this page instead")
	fs.BoolVar(&o.json, "json", false, "print one JSON document")
}

// show prints the reports and their ratios.
func (l *laboratory) show(list []*comparison.Report, o comparing) (err error) {
	for _, r := range list {
		if o.json {
			err = errors.Join(err, r.JSON(l.stdout))
		} else {
			err = errors.Join(err, r.Text(l.stdout))
		}
	}
	if err == nil && o.ratios {
		err = bench.Ratios(list, l.stdout, l.stderr)
	}
	return err
}
