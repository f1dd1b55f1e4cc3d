package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/smcgw/smcgw/lab/bench/paper"
	"github.com/smcgw/smcgw/lab/bench/profile"
	"github.com/smcgw/smcgw/lab/testnet"
)

// A profile is of a run of its own, after the rounds: profiling makes a run slower.
const (
	settle  = 300 * time.Millisecond  // from the beginning of a run to the first sample
	looking = 1300 * time.Millisecond // while samples are taken
	lasting = 2 * time.Second         // of the run; some programs know whole seconds only
	// overhead is what a profile takes besides.
	overhead = 800 * time.Millisecond
	// disturbed is a share of other processes that is not expected here.
	disturbed = 0.15
	// fewest is how many samples say something.
	fewest = 200
	// tries is how often a run is looked at until there are as many: on a busy machine
	// perf may begin when the run is over.
	tries = 3
)

// tooFewError says that a profile has too few samples to say something.
type tooFewError int

func (n tooFewError) Error() string { return fmt.Sprintf("only %d samples", int(n)) }

// profiler looks at works that a runner does.
type profiler struct {
	runner    *runner
	directory string // for what it saw
	// record is [profile.Record].
	record func(ctx context.Context, directory string, d time.Duration, done <-chan struct{}) (string, error)
}

// runs calls each for every way of every work that is looked at, until it
// returns false.
func runs(works []Work, each func(*Work, *Cell) bool) {
	for i := range works {
		for j := range works[i].Cells {
			if w, c := &works[i], &works[i].Cells[j]; slices.Contains(w.Profiled, c.Variant) && !each(w, c) {
				return
			}
		}
	}
}

// takes is how long profiles of works will take.
func (p *profiler) takes(works []Work) (d time.Duration) {
	runs(works, func(w *Work, _ *Cell) bool {
		d += w.Lead + lasting + overhead
		return true
	})
	return d
}

// all makes the profiles of works. Those that come to nothing are among the
// remarks; an error is that of the directory.
func (p *profiler) all(ctx context.Context, works []Work) (list []paper.Profile, remarks []string, err error) {
	if !installed(profile.Program) {
		return nil, []string{"no profiles: " + profile.Program + " is not installed"}, nil
	}
	if err := os.MkdirAll(p.directory, 0o755); err != nil {
		return nil, nil, fmt.Errorf("profiles: %w", err)
	}
	start := time.Now()
	runs(works, func(w *Work, c *Cell) bool {
		one, err := p.one(ctx, w, c)
		for n := 1; n < tries && errors.As(err, new(tooFewError)); n++ {
			one, err = p.one(ctx, w, c)
		}
		switch {
		case ctx.Err() != nil:
			remarks = append(remarks, "no more profiles: "+context.Cause(ctx).Error())
		case err != nil:
			remarks = append(remarks, fmt.Sprintf("no profile of %s, %s: %v", w.Metrics[0].Name, c.Variant, err))
		default:
			list = append(list, one)
			if share := one.Share(string(profile.Machine)); share > disturbed {
				remarks = append(remarks, fmt.Sprintf("profile of %s, %s: the machine had something else to do for %.0f %% of its time", one.Work, one.Variant, share*100))
			}
		}
		return ctx.Err() == nil
	})
	fmt.Fprintf(p.runner.log, "%d profiles took %.0f s\n", len(list), time.Since(start).Seconds())
	return list, remarks, nil
}

// one does a work one way and looks at it.
func (p *profiler) one(ctx context.Context, w *Work, c *Cell) (paper.Profile, error) {
	out := paper.Profile{Work: w.Metrics[0].Name, Variant: c.Variant, Unit: w.Metrics[0].Unit}
	ctx, cancel := context.WithTimeoutCause(ctx, w.Lead+p.runner.limit, errTooLong)
	defer cancel()
	done, seen := make(chan struct{}), make(chan look, 1)
	over := sync.OnceFunc(func() { close(done) })
	go func() { seen <- p.look(ctx, w, c, done) }()
	long := *c
	long.Run = func(ctx context.Context, d time.Duration) ([]float64, error) {
		defer over()
		if w.Long != nil {
			return w.Long(ctx, c.way, d)
		}
		return c.Run(ctx, d)
	}
	values, err := p.runner.cell(ctx, w, &long, lasting)
	over() // also where it was not begun
	got := <-seen
	if err := errors.Join(err, got.err); err != nil {
		return out, err
	}
	if len(values) != len(w.Metrics) {
		return out, fmt.Errorf("%d numbers instead of %d", len(values), len(w.Metrics))
	}
	out.Value = values[0]
	if err := p.count(&out, got); err != nil {
		return out, err
	}
	fmt.Fprintf(p.runner.log, "profile of %s, %s: %.4g %v of %d samples\n", out.Work, out.Variant, values, metricUnits(w), out.Samples)
	return out, nil
}

func metricUnits(w *Work) (units []string) {
	for _, m := range w.Metrics {
		units = append(units, m.Unit)
	}
	return units
}

// look is what was seen of a run.
type look struct {
	script string
	roles  map[int]profile.Role
	err    error
}

// look takes samples while a run lasts, and notes the processes there are
// meanwhile.
func (p *profiler) look(ctx context.Context, w *Work, c *Cell, done <-chan struct{}) (l look) {
	if testnet.Sleep(ctx, w.Lead+settle-profile.Delay) != nil {
		return look{err: context.Cause(ctx)}
	}
	ready := make(chan struct{})
	go func() {
		defer close(ready)
		_ = testnet.Sleep(ctx, profile.Delay)
		l.roles = c.way.roles()
	}()
	l.script, l.err = p.record(ctx, p.directory, looking, done)
	<-ready
	return l
}

// count sorts the samples, and keeps them as stacks.
func (p *profiler) count(out *paper.Profile, l look) error {
	var tally profile.Tally
	folded := profile.Folded{}
	for s, err := range profile.Parse(l.script) {
		if err != nil {
			return err
		}
		role := profile.RoleOf(&s, l.roles)
		tally.Add(&s, role)
		folded.Add(&s, role)
	}
	if tally.Samples() < fewest {
		return tooFewError(tally.Samples())
	}
	out.Samples, out.Parts = tally.Samples(), tally.Parts()
	f, err := os.Create(filepath.Join(p.directory, fileName(out.Work+"."+out.Variant)+".folded"))
	if err != nil {
		return err
	}
	return errors.Join(folded.Write(f), f.Close())
}

// fileName makes a name of what a work is called.
func fileName(name string) string {
	return strings.Map(func(r rune) rune {
		switch r {
		case ' ', '/':
			return '_'
		case ',', '(', ')', ':':
			return -1
		}
		return r
	}, name)
}

// roles are the parts of the processes of both hosts. Hosts and their gateways
// are of several ways: those that have nothing to do are no bother.
func (w way) roles() map[int]profile.Role {
	by := map[int]profile.Role{}
	for _, end := range []struct {
		host             *host
		program, gateway profile.Role
	}{{w.client, profile.Client, profile.ClientGateway}, {w.server, profile.Server, profile.ServerGateway}} {
		if end.host == nil {
			continue
		}
		for _, pid := range end.host.cgroup.Processes() {
			by[pid] = end.program
		}
		for _, pid := range end.host.daemons() {
			by[pid] = end.gateway
		}
	}
	return by
}
