package profile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Program is what samples; Debian's package linux-perf has it.
const Program = "perf"

// rate is how often a second each processor is looked at. It is no multiple of
// what timers of programs and kernels are set to.
const rate = 997

// Delay is how long perf looks around before it samples: it reads what is in the
// memory of all processes, which is work of its own.
const Delay = 200 * time.Millisecond

// Record samples all processors, after [Delay], for that long or until done is
// closed, and returns what perf script prints of it. It needs root, or the rights
// that perf needs. Directory is where it may put a file; it removes it again.
func Record(ctx context.Context, directory string, d time.Duration, done <-chan struct{}) (string, error) {
	data := filepath.Join(directory, "perf.data")
	defer os.Remove(data)
	// No build IDs: what is looked up is still where it was. It ends with sleep,
	// also if this process has ended before.
	cmd, stderr := perf(ctx, "record", "--quiet", "--all-cpus", "--call-graph", "fp", "--event", "cpu-clock",
		"--freq", strconv.Itoa(rate), "--no-buildid", "--no-buildid-cache", "--delay", strconv.FormatInt(Delay.Milliseconds(), 10),
		"--output", data, "--", "sleep", strconv.FormatFloat((Delay+d).Seconds(), 'f', 3, 64))
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("perf record: %w", err)
	}
	ended := make(chan error)
	go func() { ended <- cmd.Wait() }()
	var err error
	select {
	case err = <-ended:
	case <-done:
		_ = cmd.Process.Signal(os.Interrupt)
		if err = <-ended; interrupted(err) {
			err = nil
		}
	}
	if err := failed(ctx, err, stderr); err != nil {
		return "", fmt.Errorf("perf record: %w", err)
	}
	cmd, stderr = perf(ctx, "script", "--input", data, "--no-inline", "--fields", fields)
	out, err := cmd.Output()
	if err := failed(ctx, err, stderr); err != nil {
		return "", fmt.Errorf("perf script: %w", err)
	}
	return string(out), nil
}

func perf(ctx context.Context, args ...string) (*exec.Cmd, *strings.Builder) {
	cmd, stderr := exec.CommandContext(ctx, Program, args...), new(strings.Builder)
	cmd.Stderr = stderr
	return cmd, stderr
}

// interrupted tells whether perf ended by our signal. It ends sleep, and then as
// sleep did.
func interrupted(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && (status.Signal() == syscall.SIGINT || status.Signal() == syscall.SIGTERM)
}

// failed says how perf ended, if not well.
func failed(ctx context.Context, err error, stderr *strings.Builder) error {
	if err == nil {
		return context.Cause(ctx)
	}
	said := strings.TrimSpace(stderr.String())
	return fmt.Errorf("%w: %s", errors.Join(context.Cause(ctx), err), said[:min(len(said), 300)])
}
