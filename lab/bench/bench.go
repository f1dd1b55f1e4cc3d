package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/smcgw/smcgw/inprocess/adopt"
	"github.com/smcgw/smcgw/inprocess/scan"
	"github.com/smcgw/smcgw/internal/comparison"
)

// Options say what to compare, and for how long.
type Options struct {
	// Executable is the smcgw that the hosts run.
	Executable string
	// Library is the library that is preloaded into programs. Default: libsmcgw.so next to the executable, or where
	// installations have it.
	Library string
	// Other is another smcgw to compare with. Hosts of its own run it, and the names of its ways begin with "other-".
	// Default: none.
	Other string
	// Quick does only what [Ratios] needs.
	Quick bool
	// Rounds is how often everything is done. Default: 7, or 4 with Quick.
	Rounds int
	// Budget is how long everything may take; a round that would not fit is not begun. If it takes longer nevertheless,
	// because runs time out, it ends as if interrupted. Default: 34 minutes; [Quick] has its own.
	Budget time.Duration
	// Duration is the duration of a run. Default: one second.
	Duration time.Duration
	// Only has the names of the works to do. Default: all.
	Only []string
	// Variants has those to compare. Default: all.
	Variants []string
	// CongestionControl is that of TCP on all hosts. Default: the machine's.
	CongestionControl string
	// Profile is a directory to create for profiles: after the rounds, works are done once more while perf samples the
	// machine, and the results go there. The time that this takes is part of the budget. Default: none.
	Profile string
	// Log receives progress messages. Default: none.
	Log io.Writer
	// Command is the command line that reproduces the report.
	Command string

	passes pass // the passes for which Quick does what is needed; 0: both
}

func (o Options) withDefaults() Options {
	if o.Rounds == 0 {
		o.Rounds = 7
		if o.Quick {
			o.Rounds = 4
		}
	}
	if o.Budget == 0 {
		o.Budget = 34 * time.Minute
	}
	if o.Duration == 0 {
		o.Duration = time.Second
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.passes == 0 {
		o.passes = bothPasses
	}
	return o
}

// ErrRoot means that a comparison needs root for network namespaces.
var ErrRoot = errors.New("a comparison on this machine needs root, for network namespaces and eBPF")

// limit is how much longer than planned a run may take.
const limit = 15 * time.Second

// grace is how much more than the budget a round may take that was expected to fit.
const grace = 20 * time.Second

var errBudget = errors.New("the time for all rounds is over")

var errNothing = errors.New("nothing to compare")

// Run creates the hosts, compares, and always cleans up. Runs that failed are reported as such and are no error;
// [Ratios] says what they cost. If ctx ends before everything is done, Run returns an error and a report of what is
// done.
func Run(ctx context.Context, opts Options) (_ *comparison.Report, err error) {
	o := opts.withDefaults()
	if os.Geteuid() != 0 {
		return nil, ErrRoot
	}
	cc, restore, err := congestion(o.CongestionControl)
	if err != nil {
		return nil, err
	}
	defer restore()
	begin := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, o.Budget+grace, errBudget)
	defer cancel()
	n, err := newNetwork(cc)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	jobs, _, err := o.choose(everyWay(o.Other != ""))
	if err != nil {
		return nil, err
	}
	library, errLibrary := adopt.Library(scan.Glibc, o.Library, o.Executable)
	ways, err := n.build(ctx, o.Executable, o.Other, library, variants(jobs))
	if err != nil {
		return nil, err
	}
	jobs, notes, err := o.choose(ways)
	if err != nil {
		return nil, err
	}
	if errLibrary != nil {
		notes = append(notes, "nothing was done in process: "+errLibrary.Error())
	}
	fmt.Fprintf(o.Log, "%d rounds of %v a run, congestion control %s; not counted: a short round first\n", o.Rounds, o.Duration, cc)
	r := comparison.Runner{Rounds: o.Rounds, Duration: o.Duration, Limit: o.Duration + limit, Budget: max(o.Budget-time.Since(begin), time.Nanosecond), Log: o.Log}
	look := profiler{directory: o.Profile, jobs: jobs, log: o.Log}
	if o.Profile != "" {
		r.Budget = max(r.Budget-look.takes(), time.Nanosecond)
	}
	rep := &comparison.Report{Machine: comparison.ThisMachine(cc), Rounds: o.Rounds, Commands: []string{o.Command}, Notes: append(notes, n.pins.String())}
	var works []comparison.Work
	for _, j := range jobs {
		works = append(works, j.done(j.by))
	}
	rep.Series, err = r.Run(ctx, works)
	rep.Notes = append(rep.Notes, n.used.notes()...)
	if r.Done < o.Rounds {
		why := "more did not fit into the time"
		if err != nil {
			why = err.Error()
		}
		rep.Notes = append(rep.Notes, fmt.Sprintf("%d of %d rounds were done whole: %s", r.Done, o.Rounds, why))
	}
	if errors.Is(err, errBudget) {
		err = nil // the notes say so
	}
	if o.Profile != "" && err == nil && ctx.Err() == nil {
		var said []string
		said, err = look.all(ctx)
		rep.Notes = append(rep.Notes, said...)
	}
	return rep, err
}

// job is a selected work, and the ways in which to do it.
type job struct {
	work
	by []way
}

// quickBudget is the budget of [Quick] for both passes.
const quickBudget = 520 * time.Second

// Quick does what [Ratios] needs: first with the default congestion control of most hosts on all hosts, and then, with
// new hosts and gateways, with one that paces. It returns both reports. If the options have a congestion control, there
// is only one pass, with that.
func Quick(ctx context.Context, o Options) (list []*comparison.Report, err error) {
	o.Quick = true
	if o.Budget == 0 {
		o.Budget = quickBudget
	}
	if o.CongestionControl != "" {
		r, err := Run(ctx, o)
		return appendReport(nil, r), err
	}
	begin, budget := time.Now(), o.Budget
	// The second pass has the time that the first has left.
	o.passes, o.CongestionControl, o.Budget = usualPass, Usual, budget*3/5
	r, err := Run(ctx, o)
	list = appendReport(list, r)
	if err != nil {
		return list, err
	}
	o.passes, o.CongestionControl, o.Budget = pacedPass, pacing(), budget-time.Since(begin)
	r, err = Run(ctx, o)
	if errors.Is(err, errNothing) && len(list) > 0 { // the first pass did all wanted works
		err = nil
	}
	return appendReport(list, r), err
}

func appendReport(list []*comparison.Report, r *comparison.Report) []*comparison.Report {
	if r == nil {
		return list
	}
	return append(list, r)
}

// choose selects works and variants. It notes those for which a program is missing.
func (o *Options) choose(ways map[string]way) (chosen []job, notes []string, err error) {
	need := needed(o.passes)
	var names []string
	for _, w := range works() {
		names = append(names, w.name)
		if len(o.Only) > 0 && !slices.Contains(o.Only, w.name) {
			continue
		}
		by := slices.DeleteFunc(w.among(ways), func(x way) bool {
			return o.Quick && !w.needs(need, x.variant) || len(o.Variants) > 0 && !slices.Contains(o.Variants, x.variant)
		})
		switch lacks := w.missing(); {
		case len(by) == 0:
		case lacks != "":
			notes = append(notes, w.name+" was not done: "+lacks+" is not installed")
		default:
			chosen = append(chosen, job{w, by})
		}
	}
	for _, name := range o.Only {
		if !slices.Contains(names, name) {
			return nil, nil, fmt.Errorf("no work is called %q; there are %s", name, strings.Join(names, ", "))
		}
	}
	if len(chosen) == 0 {
		return nil, nil, errNothing
	}
	return chosen, notes, nil
}

// variants returns the names of the ways in which works are done.
func variants(jobs []job) (list []string) {
	for _, j := range jobs {
		for _, by := range j.by {
			list = append(list, by.name())
		}
	}
	return list
}

// needs reports whether one of a work's metrics is needed for a way.
func (w *work) needs(need map[string][]string, variant string) bool {
	return slices.ContainsFunc(w.metrics(), func(m comparison.Metric) bool {
		return slices.Contains(need[m.Name], strings.TrimPrefix(variant, otherPrefix))
	})
}
