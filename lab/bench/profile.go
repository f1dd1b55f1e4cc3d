package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/smcgw/smcgw/internal/comparison"
)

// perf is the program that samples; Debian's package linux-perf has it.
const perf = "perf"

// Profiles are made in separate runs after the rounds, because sampling slows a run down.
const (
	settle  = 500 * time.Millisecond  // from the beginning of a run to the first sample
	looking = 1300 * time.Millisecond // duration of the sampling
	lasting = 2 * time.Second         // duration of the run; some programs accept only whole seconds
	// overhead is the additional time that a profile takes.
	overhead = 1500 * time.Millisecond
	// sampleRate is how often per second each processor is sampled. It is not a multiple of common timer rates of
	// programs and kernels.
	sampleRate = 997
)

// sampled are the variants that are profiled.
var sampled = []string{comparison.TCP, InProcess, Shm, Soft1500, Attached, Between1500}

// profiler does works once more and samples the machine with perf.
type profiler struct {
	directory string
	jobs      []job
	log       io.Writer
}

// runs calls each for every way of every profiled work, until it returns false.
func (p *profiler) runs(each func(j *job, by way) bool) {
	for i := range p.jobs {
		for _, by := range p.jobs[i].by {
			if p.jobs[i].profiled && slices.Contains(sampled, by.variant) && !each(&p.jobs[i], by) {
				return
			}
		}
	}
}

// takes returns how long all profiles will take.
func (p *profiler) takes() (d time.Duration) {
	p.runs(func(j *job, _ way) bool {
		d += j.load.lead + lasting + overhead
		return true
	})
	return d
}

// all makes the profiles. Failures of single profiles are among the remarks; an error is about the directory.
func (p *profiler) all(ctx context.Context) (remarks []string, err error) {
	if !installed(perf) {
		return []string{"no profiles: " + perf + " is not installed"}, nil
	}
	if err := os.MkdirAll(p.directory, 0o755); err != nil {
		return nil, fmt.Errorf("profiles: %w", err)
	}
	p.runs(func(j *job, by way) bool {
		switch err := p.one(ctx, j, by); {
		case ctx.Err() != nil:
			remarks = append(remarks, "no more profiles: "+context.Cause(ctx).Error())
		case err != nil:
			remarks = append(remarks, fmt.Sprintf("no profile of %s, %s: %v", j.name, by.variant, err))
		default:
			fmt.Fprintf(p.log, "profile of %s, %s\n", j.name, by.variant)
		}
		return ctx.Err() == nil
	})
	return remarks, nil
}

// one does a work in one way and samples it. NAME.data has samples with their stacks, for perf script and tools for
// flame graphs; NAME.txt has the share of processor time of each function of each program.
func (p *profiler) one(ctx context.Context, j *job, by way) error {
	ctx, cancel := context.WithTimeoutCause(ctx, j.load.lead+lasting+limit, errors.New("the run took too long"))
	defer cancel()
	name := filepath.Join(p.directory, j.name+"."+by.variant)
	// No build IDs, since the files that symbols are looked up in are still there. The sampling ends with sleep, even
	// if this process ends before.
	first := j.load.lead + settle
	record := exec.CommandContext(ctx, perf, "record", "--quiet", "--all-cpus", "--call-graph", "fp", "--event", "cpu-clock",
		"--freq", strconv.Itoa(sampleRate), "--no-buildid", "--no-buildid-cache", "--delay", strconv.FormatInt(first.Milliseconds(), 10),
		"--output", name+".data", "--", "sleep", strconv.FormatFloat((first+looking).Seconds(), 'f', 3, 64))
	var said strings.Builder
	record.Stderr = &said
	if err := record.Start(); err != nil {
		return fmt.Errorf("perf record: %w", err)
	}
	_, errRun := by.verified(ctx, j.load.do, lasting)
	if err := errors.Join(record.Wait(), errRun); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	table, err := exec.CommandContext(ctx, perf, "report", "--input", name+".data", "--stdio", "--no-children", "--call-graph", "none",
		"--sort", "comm,dso,symbol", "--percent-limit", "0.3").Output()
	if err != nil {
		return fmt.Errorf("perf report: %w", err)
	}
	return os.WriteFile(name+".txt", table, 0o644)
}
