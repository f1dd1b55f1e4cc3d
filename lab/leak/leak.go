package leak

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"go.uber.org/goleak"
)

// Runner is the part of [testing.M] that Main needs.
type Runner interface{ Run() int }

// TB is the part of [testing.TB] that Check needs.
type TB interface {
	Helper()
	Cleanup(func())
	Failed() bool
	Errorf(format string, args ...any)
}

// ExitLeak is the exit status of a test binary whose tests passed but leaked.
const ExitLeak = 99

// patience is how long asynchronous closing may take.
const patience = 20 * time.Second

// Main runs the tests and then checks for leaks. Its result is for [os.Exit]. If tests failed, it does not check, since
// their cleanup cannot be trusted.
func Main(m Runner) int { return run(m, patience) }

func run(m Runner, patience time.Duration) int {
	before := OpenFiles()
	if code := m.Run(); code != 0 {
		return code
	}
	code := 0
	if err := leakedGoroutines(patience); err != nil {
		fmt.Fprintf(os.Stderr, "leak: goroutines: %v\n", err)
		code = ExitLeak
	}
	if leaked := leakedFiles(patience, before); len(leaked) > 0 {
		fmt.Fprintf(os.Stderr, "leak: file descriptors:\n  %s\n", strings.Join(leaked, "\n  "))
		code = ExitLeak
	}
	return code
}

// Check checks for leaks at the end of one test. The test must not be parallel, because the goroutines and descriptors
// of others would count as its own. What exists when Check is called is not a leak.
func Check(tb TB) {
	tb.Helper()
	check(tb, patience)
}

func check(tb TB, patience time.Duration) {
	tb.Helper()
	files := OpenFiles()
	ignore := goleak.IgnoreCurrent()
	tb.Cleanup(func() {
		tb.Helper()
		if tb.Failed() {
			return
		}
		if err := leakedGoroutines(patience, ignore); err != nil {
			tb.Errorf("leak: goroutines: %v", err)
		}
		if leaked := leakedFiles(patience, files); len(leaked) > 0 {
			tb.Errorf("leak: file descriptors: %s", strings.Join(leaked, ", "))
		}
	})
}

// leakedGoroutines waits for goroutines that should end.
func leakedGoroutines(patience time.Duration, options ...goleak.Option) (err error) {
	for end := time.Now().Add(patience); ; {
		if err = goleak.Find(options...); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// leakedFiles waits for new descriptors to be closed.
func leakedFiles(patience time.Duration, before map[string]string) []string {
	var leaked []string
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		leaked = newFiles(before, OpenFiles())
		if len(leaked) == 0 || time.Now().After(end) {
			return leaked
		}
		runtime.Gosched()
	}
}

// OpenFiles returns the open descriptors and what they refer to.
func OpenFiles() map[string]string {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	files := make(map[string]string, len(entries))
	for _, e := range entries {
		// The descriptor for reading the directory is closed by now.
		if target, err := os.Readlink(dir + "/" + e.Name()); err == nil {
			files[e.Name()] = target
		}
	}
	return files
}

// newFiles returns descriptors that are new, or refer to something else than before. It permits the runtime's own
// poller, which appears with the first use of the network and stays.
func newFiles(before, now map[string]string) []string {
	epolls := func(m map[string]string) (n int) {
		for _, target := range m {
			if runtimeFile(target) {
				n++
			}
		}
		return n
	}
	spare := max(0, runtimePollers-epolls(before))
	var leaked []string
	for fd, target := range now {
		if before[fd] == target {
			continue
		}
		if runtimeFile(target) && spare > 0 {
			spare--
			continue
		}
		leaked = append(leaked, fd+" "+target)
	}
	slices.Sort(leaked)
	return leaked
}

// runtimePollers is the number of files of the runtime's poller: an epoll instance and the eventfd that wakes it.
const runtimePollers = 2

func runtimeFile(target string) bool {
	return target == "anon_inode:[eventpoll]" || target == "anon_inode:[eventfd]"
}
