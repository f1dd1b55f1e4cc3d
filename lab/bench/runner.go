package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/smcgw/smcgw/bench/comparison"
)

// Metric is one number that a work yields.
type Metric struct {
	Name   string // how the report calls the work by this number
	Unit   string
	Better comparison.Better
}

// Work is something two ordinary programs do with each other, and the ways
// they do it.
type Work struct {
	// Name is the group that -only selects by.
	Name string
	// Metrics are the numbers of a run, in the order in which cells return them.
	Metrics []Metric
	// Times is how often a round does it: short works and those whose ratios
	// must be exact are repeated. Default: 1.
	Times int
	// Rounds is how many rounds do it at most. Default: all.
	Rounds int
	// Limit is how long a run may take, if not what the others may.
	Limit time.Duration
	// Cells are the ways. Their order turns from round to round.
	Cells []Cell
	// Profiled are the variants whose processor time a profile looks at.
	Profiled []string
	// NoWarmUp leaves the work out of the round that does not count.
	NoWarmUp bool
	// Lead is how long the programs take until they do the work itself.
	Lead time.Duration
	// Long does the work for as long as it is told to, where Run of the cells
	// does not.
	Long run
}

// Cell is one work done one way.
type Cell struct {
	Variant string
	// Run does the work for about that long and returns a number per metric; NaN
	// for one that this way has not.
	Run func(ctx context.Context, d time.Duration) ([]float64, error)
	// Begin notes what only this variant does; the function it returns, called
	// after the run, fails unless the run was of the variant. It may be nil.
	Begin func(ctx context.Context) (check func(ctx context.Context) error, err error)

	way way
}

// runner does works in interleaved rounds.
type runner struct {
	rounds   int
	duration time.Duration // of a run
	limit    time.Duration // beyond which a run has failed
	budget   time.Duration // no round begins that would not end within it; 0: no limit
	log      io.Writer

	done int // rounds that were done whole
}

// run does every work in every round and returns a series per metric and cell.
// Before the first round is a short one that is not counted: caches fill, peers
// get to know each other. A run that fails is NaN and noted; only the end of the
// context ends everything, and is an error with the series so far.
func (r *runner) run(ctx context.Context, works []Work) ([]comparison.Series, error) {
	all := make([]*results, len(works))
	for i := range works {
		all[i] = newResults(&works[i])
	}
	err := r.all(ctx, works, all)
	var list []comparison.Series
	for _, res := range all {
		list = append(list, res.series()...)
	}
	if err != nil { // what was not begun is not there
		list = slices.DeleteFunc(list, func(s comparison.Series) bool { return len(s.Values) == 0 })
	}
	return list, err
}

func (r *runner) all(ctx context.Context, works []Work, all []*results) error {
	begin, longest := time.Now(), time.Duration(0)
	for round := -1; round < r.rounds; round++ {
		start := time.Now()
		if r.budget > 0 && round > 0 && start.Add(longest).After(begin.Add(r.budget)) {
			fmt.Fprintf(r.log, "no time for more than %d rounds of %d\n", round, r.rounds)
			break
		}
		for i := range works {
			if err := r.round(ctx, round, &works[i], all[i]); err != nil {
				return err
			}
		}
		took := time.Since(start)
		fmt.Fprintf(r.log, "round %d of %d took %.0f s\n", round+1, r.rounds, took.Seconds())
		if round >= 0 {
			longest = max(longest, took)
			r.done++
		}
	}
	return nil
}

// warmUp is the duration of a run that is not counted.
const warmUp = 200 * time.Millisecond

// round does one work every way, in an order that depends on the round.
func (r *runner) round(ctx context.Context, round int, w *Work, res *results) error {
	if w.Rounds > 0 && round >= w.Rounds || w.NoWarmUp && round < 0 {
		return nil
	}
	times, d := max(1, w.Times), r.duration
	if round < 0 {
		times, d = 1, min(d, warmUp)
	}
	start := time.Now()
	for t := range times {
		for i := range w.Cells {
			at := (i + max(0, round) + t) % len(w.Cells)
			values, err := r.cell(ctx, w, &w.Cells[at], d)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err == nil && len(values) != len(w.Metrics) {
				err = fmt.Errorf("%d numbers instead of %d", len(values), len(w.Metrics))
			}
			if err != nil {
				fmt.Fprintf(r.log, "round %d: %s, %s: %v\n", round+1, w.Name, w.Cells[at].Variant, err)
			}
			if round >= 0 {
				res.add(at, values, err)
			}
		}
	}
	if took, n := time.Since(start).Seconds(), times*len(w.Cells); n > 0 {
		fmt.Fprintf(r.log, "round %d: %s took %.1f s, %.2f s a run\n", round+1, w.Name, took, took/float64(n))
	}
	return nil
}

// cell does one work one way, and sees that it was.
func (r *runner) cell(ctx context.Context, w *Work, c *Cell, d time.Duration) ([]float64, error) {
	limit := r.limit
	if w.Limit > 0 {
		limit = w.Limit
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTooLong)
	defer cancel()
	if c.Begin == nil {
		return c.Run(ctx, d)
	}
	check, err := c.Begin(ctx)
	if err != nil {
		return nil, err
	}
	values, err := c.Run(ctx, d)
	if wrong := check(ctx); wrong != nil {
		return nil, errors.Join(err, wrong)
	}
	return values, err
}

var errTooLong = errors.New("the run took too long")

// results are the numbers of one work by metric and cell.
type results struct {
	work   *Work
	values [][][]float64 // by cell, metric
	failed []int         // by cell
	last   []error
}

func newResults(w *Work) *results {
	r := &results{work: w, values: make([][][]float64, len(w.Cells)), failed: make([]int, len(w.Cells)), last: make([]error, len(w.Cells))}
	for i := range r.values {
		r.values[i] = make([][]float64, len(w.Metrics))
	}
	return r
}

func (r *results) add(cell int, values []float64, err error) {
	if err != nil {
		r.failed[cell]++
		r.last[cell] = err
	}
	for m := range r.work.Metrics {
		v := math.NaN()
		if err == nil {
			v = values[m]
		}
		r.values[cell][m] = append(r.values[cell][m], v)
	}
}

// series leaves out what a way has not: numbers that are NaN though no run failed.
func (r *results) series() (list []comparison.Series) {
	for m, metric := range r.work.Metrics {
		for i, c := range r.work.Cells {
			values := r.values[i][m]
			if len(values) > 0 && r.failed[i] == 0 && !slices.ContainsFunc(values, func(v float64) bool { return !math.IsNaN(v) }) {
				continue
			}
			s := comparison.Series{Work: metric.Name, Variant: c.Variant, Unit: metric.Unit, Better: metric.Better, Values: values}
			if n := r.failed[i]; n > 0 {
				s.Note = fmt.Sprintf("%d of %d rounds failed: %v", n, len(s.Values), r.last[i])
			}
			list = append(list, s)
		}
	}
	return list
}
