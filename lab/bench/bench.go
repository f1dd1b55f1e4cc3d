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

// Options say what is compared, and how long.
type Options struct {
	// Executable is the smcgw that the hosts run.
	Executable string
	// Library is what programs are preloaded with. Default: libsmcgw.so beside the executable, or where
	// installations have it.
	Library string
	// Other is another smcgw to compare with: hosts of their own run it, and its
	// ways have names that begin with "other-". Default: none.
	Other string
	// Quick does only what [Ratios] need.
	Quick bool
	// Rounds is how often everything is done. Default: 7, or 4 with Quick.
	Rounds int
	// Budget is how long it may take; rounds that would not fit are not begun.
	// What takes longer nevertheless, because runs fail by time, ends as if it
	// was interrupted. Default: 34 minutes; that of [Quick] is its own.
	Budget time.Duration
	// Duration is that of a run. Default: a second.
	Duration time.Duration
	// Only are the names of the works that are done. Default: all.
	Only []string
	// Variants are those that are compared. Default: all.
	Variants []string
	// CongestionControl of TCP on all hosts. Default: the machine's.
	CongestionControl string
	// Profile is a directory, which is made: after the rounds works are done once more while perf
	// looks at the machine, and what it saw is put there. The time that takes is part of the
	// budget. Default: none.
	Profile string
	// Log receives what happens, as it happens. Default: nothing.
	Log io.Writer
	// Command is what the report says makes it again.
	Command string

	passes pass // those of which Quick does what is needed; 0: both
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

// ErrRoot says that there is no comparison without root: there are no network
// namespaces.
var ErrRoot = errors.New("a comparison on this machine needs root, for network namespaces and eBPF")

// limit is how much longer than it should a run may take.
const limit = 15 * time.Second

// grace is how much more than the budget a round may take that had been thought
// to fit.
const grace = 20 * time.Second

var errBudget = errors.New("the time for all rounds is over")

var errNothing = errors.New("nothing to compare")

// Run makes the hosts, compares, and cleans up whatever happens. Runs that
// failed are in the report as such and no error; [Ratios] says what they cost.
// If ctx ends before all is done there is an error, and a report of what is.
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
		err = nil // which the notes say
	}
	if o.Profile != "" && err == nil && ctx.Err() == nil {
		var said []string
		said, err = look.all(ctx)
		rep.Notes = append(rep.Notes, said...)
	}
	return rep, err
}

// job is a work that was chosen, and the ways it is done.
type job struct {
	work
	by []way
}

// quickBudget is the budget of [Quick], of both passes.
const quickBudget = 520 * time.Second

// Quick does what [Ratios] need: once with the congestion control that most
// hosts have, on all hosts, and then, on hosts and gateways made again, with one
// that paces. It returns the report of each. A congestion control in the options
// is the only one.
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
	// The second pass has what time the first left.
	o.passes, o.CongestionControl, o.Budget = usualPass, Usual, budget*3/5
	r, err := Run(ctx, o)
	list = appendReport(list, r)
	if err != nil {
		return list, err
	}
	o.passes, o.CongestionControl, o.Budget = pacedPass, pacing(), budget-time.Since(begin)
	r, err = Run(ctx, o)
	if errors.Is(err, errNothing) && len(list) > 0 { // of the works that are wanted the first pass had all
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

// choose picks works and variants. What lacks its program is noted.
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

// variants are the names of the ways that works are done.
func variants(jobs []job) (list []string) {
	for _, j := range jobs {
		for _, by := range j.by {
			list = append(list, by.name())
		}
	}
	return list
}

// needs tells whether one of a work's metrics is needed of a way.
func (w *work) needs(need map[string][]string, variant string) bool {
	return slices.ContainsFunc(w.metrics(), func(m comparison.Metric) bool {
		return slices.Contains(need[m.Name], strings.TrimPrefix(variant, otherPrefix))
	})
}
