package comparison

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// Metric is one of the numbers that a work yields.
type Metric struct {
	Name   string // what the report calls the work with this number
	Unit   string
	Better Better
}

// Work is something that two programs do together, and the ways of doing it.
type Work struct {
	Name string
	// Metrics are the numbers of a run, in the order in which Cell.Run returns them.
	Metrics []Metric
	// Times is how often a round does it. Short works, and those whose ratios must be exact, are repeated. Default: 1.
	Times int
	// Rounds bounds how many rounds do it. Default: all.
	Rounds int
	// Limit is how long a run may take, if different from the Runner's.
	Limit time.Duration
	// NoWarmUp omits the work from the round that does not count.
	NoWarmUp bool
	// Cells are the ways of doing it. Their order rotates from round to round.
	Cells []Cell
}

// Cell is one work done in one way.
type Cell struct {
	Variant string
	// Missing is why the work cannot be done in this way; empty if it can.
	Missing string
	// Run does the work for about d and returns one number per metric; NaN for a metric that this way does not have. It
	// fails if the run turns out to be of another variant.
	Run func(ctx context.Context, d time.Duration) ([]float64, error)
	// Note returns what a reader must know after all rounds. If nil, the note says how many runs failed.
	Note func() string
}

// Runner does works in interleaved rounds. It is for one goroutine and one use.
type Runner struct {
	Rounds   int
	Duration time.Duration // of a run
	Limit    time.Duration // after which a run has failed; 0: no limit
	Budget   time.Duration // no round begins that would end after it; 0: no limit
	Log      io.Writer
	// Progress, if not nil, is told before each run that counts how many of all runs are done.
	Progress func(done, total int)
	// KeepEmpty keeps series for which no run failed and none returned a number.
	KeepEmpty bool

	Done int // rounds that were completed
}

// Run does every work in every round and returns one series per metric and cell. A short round that does not count
// precedes the first one, so that caches fill and peers get to know each other. A run that fails yields NaN and is
// noted. Only the end of the context ends everything; Run then returns an error with the series so far.
func (r *Runner) Run(ctx context.Context, works []Work) ([]Series, error) {
	all := make([]*results, len(works))
	for i := range works {
		all[i] = newResults(&works[i])
	}
	err := r.all(ctx, works, all)
	var list []Series
	for _, res := range all {
		list = append(list, res.series(r.KeepEmpty)...)
	}
	if err != nil && !r.KeepEmpty { // omit what was not begun
		list = slices.DeleteFunc(list, func(s Series) bool { return len(s.Values) == 0 })
	}
	return list, err
}

func (r *Runner) all(ctx context.Context, works []Work, all []*results) error {
	begin, longest, done := time.Now(), time.Duration(0), 0
	total := 0
	for i := range works {
		total += works[i].runs(r.Rounds)
	}
	for round := -1; round < r.Rounds; round++ {
		start := time.Now()
		if r.Budget > 0 && round > 0 && start.Add(longest).After(begin.Add(r.Budget)) {
			fmt.Fprintf(r.Log, "no time for more than %d rounds of %d\n", round, r.Rounds)
			break
		}
		for i := range works {
			err := r.round(ctx, round, &works[i], all[i], func() {
				if r.Progress != nil && round >= 0 {
					r.Progress(done, total)
					done++
				}
			})
			if err != nil {
				return err
			}
		}
		took := time.Since(start)
		fmt.Fprintf(r.Log, "round %d of %d took %.0f s\n", round+1, r.Rounds, took.Seconds())
		if round >= 0 {
			longest = max(longest, took)
			r.Done++
		}
	}
	return nil
}

// runs returns how many runs of a work there are in a number of rounds.
func (w *Work) runs(rounds int) int {
	if w.Rounds > 0 {
		rounds = min(rounds, w.Rounds)
	}
	return rounds * max(1, w.Times) * len(w.Cells)
}

// WarmUp bounds the duration of a run that does not count.
const WarmUp = 200 * time.Millisecond

// round does one work in every way, in an order that depends on the round. It calls before ahead of each run.
func (r *Runner) round(ctx context.Context, round int, w *Work, res *results, before func()) error {
	if w.Rounds > 0 && round >= w.Rounds || w.NoWarmUp && round < 0 {
		return nil
	}
	times, d := max(1, w.Times), r.Duration
	if round < 0 {
		times, d = 1, min(d, WarmUp)
	}
	start := time.Now()
	for t := range times {
		for i := range w.Cells {
			at := (i + max(0, round) + t) % len(w.Cells)
			before()
			if w.Cells[at].Missing != "" {
				continue
			}
			values, err := r.cell(ctx, w, &w.Cells[at], d)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err == nil && len(values) != len(w.Metrics) {
				err = fmt.Errorf("%d numbers instead of %d", len(values), len(w.Metrics))
			}
			if err != nil {
				fmt.Fprintf(r.Log, "round %d: %s, %s: %v\n", round+1, w.Name, w.Cells[at].Variant, err)
			}
			if round >= 0 {
				res.add(at, values, err)
			}
		}
	}
	if took, n := time.Since(start).Seconds(), times*len(w.Cells); n > 0 {
		fmt.Fprintf(r.Log, "round %d: %s took %.1f s, %.2f s a run\n", round+1, w.Name, took, took/float64(n))
	}
	return nil
}

// cell does one work in one way, within its limit.
func (r *Runner) cell(ctx context.Context, w *Work, c *Cell, d time.Duration) ([]float64, error) {
	limit := r.Limit
	if w.Limit > 0 {
		limit = w.Limit
	}
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errTooLong)
		defer cancel()
	}
	return c.Run(ctx, d)
}

var errTooLong = errors.New("the run took too long")

// results has the numbers of one work by metric and cell.
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

// series omits what a way does not have, unless it is to be kept: numbers that are NaN although no run failed.
func (r *results) series(keep bool) (list []Series) {
	for m, metric := range r.work.Metrics {
		for i, c := range r.work.Cells {
			values := r.values[i][m]
			if !keep && len(values) > 0 && r.failed[i] == 0 && !slices.ContainsFunc(values, func(v float64) bool { return !math.IsNaN(v) }) {
				continue
			}
			s := Series{Work: metric.Name, Variant: c.Variant, Unit: metric.Unit, Better: metric.Better, Values: values, Note: c.Missing}
			switch {
			case c.Missing != "":
			case c.Note != nil:
				s.Note = c.Note()
			case r.failed[i] > 0:
				s.Note = fmt.Sprintf("%d of %d rounds failed: %v", r.failed[i], len(s.Values), r.last[i])
			}
			list = append(list, s)
		}
	}
	return list
}

// Spread summarises a number of rounds.
type Spread struct {
	// Median is the middle value, or the mean of the two middle ones if N is even. Min and Max are the
	// extremes. All are NaN if N is 0.
	Median, Min, Max float64
	// N is the number of rounds that counted.
	N int
}

// Spread summarises the rounds that did not fail.
func (s Series) Spread() Spread { return spreadOf(s.Values) }

// Ratio compares two ways of doing the same work round by round: each value is divided by the base's value of the same
// round, whichever direction is better. Rounds that failed on either side, or whose base is zero, do not count. It
// returns false if no round counts.
func (r *Report) Ratio(work, variant, base string) (Spread, bool) {
	v, ok := r.find(work, variant)
	if !ok {
		return spreadOf(nil), false
	}
	b, ok := r.find(work, base)
	if !ok {
		return spreadOf(nil), false
	}
	var ratios []float64
	for i := range min(len(v.Values), len(b.Values)) {
		if b.Values[i] != 0 {
			ratios = append(ratios, v.Values[i]/b.Values[i])
		}
	}
	s := spreadOf(ratios)
	return s, s.N > 0
}

// spreadOf ignores values that are not finite.
func spreadOf(values []float64) Spread {
	sorted := slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	n := len(sorted)
	if n == 0 {
		return Spread{Median: math.NaN(), Min: math.NaN(), Max: math.NaN()}
	}
	slices.Sort(sorted)
	median := sorted[n/2]
	if n%2 == 0 {
		median = sorted[n/2-1]/2 + median/2
	}
	return Spread{Median: median, Min: sorted[0], Max: sorted[n-1], N: n}
}
