package between

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/tests/inprocess/world"
)

func TestMain(m *testing.M) {
	status := leak.Main(m)
	_ = shared.Close()
	os.Exit(status)
}

var shared = world.Share("crowd", "semantics", "stress")

func open(t *testing.T, f Faults) *Hosts {
	t.Helper()
	h, err := Open(f, matrix.Rand(t).Uint64())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

// run runs a program with the library, or natively if h is nil.
func run(t *testing.T, h *Hosts, within time.Duration, name string, args ...string) (string, error) {
	t.Helper()
	b := shared.For(t)
	if h == nil {
		return start(t, h, within, nil, b.Program(name), args...)
	}
	return start(t, h, within, []string{"LD_PRELOAD=" + b.Library(), "SEMANTICS_PROMOTED=1"}, b.Program(name), args...)
}

func start(t *testing.T, h *Hosts, within time.Duration, env []string, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	if h != nil {
		c.Env = append(append(os.Environ(), "SMCGW_SOCKET="+h.Socket()), env...)
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		return "", err
	}
	began := time.Now()
	err := c.Wait()
	took := time.Since(began)
	if h != nil {
		t.Logf("%s: %v, promoted %d, ring bytes %d, missed bells %d, struck %d: %s", name, took, h.Promoted.Load(), h.Moved.Load(), h.Missed.Load(), h.Struck.Load(), out.String())
	}
	_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	return out.String(), err
}

func seed(t *testing.T) string { return strconv.FormatUint(matrix.Seed(t)%(1<<32), 10) }

var ways = []string{"bb", "ll", "ee", "oo", "pp", "ss", "qq", "LL", "BB", "bl", "eb", "pe", "so", "OQ"}

// TestEveryByte checks every byte of both directions at once, with all ways of waiting.
func TestEveryByte(t *testing.T) {
	for i, modes := range ways {
		family, window := []string{"4", "6", "m"}[i%3], []string{"0", "4096"}[i%2]
		t.Run(modes+family, func(t *testing.T) {
			h := open(t, Faults{Delay: 3 * time.Millisecond})
			said, err := run(t, h, time.Minute, "stress", modes, family, "0.7", seed(t), window)
			require.NoError(t, err, said)
			require.NotZero(t, h.Moved.Load(), "native: %s", said)
			require.Zero(t, h.Missed.Load(), "bells")
		})
	}
}

// TestFaults checks that streams stay whole when carriers fail, gateways die and recalls come, at any byte.
func TestFaults(t *testing.T) {
	for name, f := range map[string]Faults{
		"carrier": {Carrier: 1, Within: 100 * time.Millisecond, Delay: 3 * time.Millisecond},
		"gateway": {Gateway: 1, Within: 100 * time.Millisecond, Delay: 3 * time.Millisecond},
		"stops":   {Gateway: 1, Stops: true, Within: 100 * time.Millisecond, Delay: 3 * time.Millisecond},
		"recall":  {Recall: 1, Within: 100 * time.Millisecond, Delay: 3 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			h := open(t, f)
			t.Setenv("STRESS_RECALLS", "1")
			said, err := run(t, h, 5*time.Minute, "stress", "??", "4", "0.2", seed(t), "?", "-", "30")
			require.NoError(t, err, said)
			require.NotZero(t, h.Struck.Load(), said)
			require.NotZero(t, h.Moved.Load(), said)
		})
	}
}

// TestEndsThatAreKilled checks that the other end sees only what it may see natively.
func TestEndsThatAreKilled(t *testing.T) {
	for _, how := range []string{"k", "s", "c", "r", "x"} {
		t.Run(how, func(t *testing.T) {
			args := []string{"??", "4", "0.1", seed(t), "0", how, "20"}
			said, err := run(t, nil, 5*time.Minute, "stress", args...)
			require.NoError(t, err, "natively: %s", said)
			h := open(t, Faults{Delay: 3 * time.Millisecond})
			said, err = run(t, h, 5*time.Minute, "stress", args...)
			require.NoError(t, err, said)
			require.NotZero(t, h.Moved.Load())
		})
	}
}

// TestPrograms checks streams while programs duplicate, fork, pass and exec with their descriptors, also if one end is
// killed, stopped or leaves.
func TestPrograms(t *testing.T) {
	for _, how := range []string{"-+", "a+"} {
		t.Run(how, func(t *testing.T) {
			h := open(t, Faults{Delay: 3 * time.Millisecond})
			said, err := run(t, h, 5*time.Minute, "stress", "??", "?", "0.2", seed(t), "?", how, "25")
			require.NoError(t, err, said)
			require.NotZero(t, h.Moved.Load())
		})
	}
}

// TestCallsDoWhatTheyDoNatively compares cases whose outcome does not depend on when bytes arrive.
func TestCallsDoWhatTheyDoNatively(t *testing.T) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := open(t, Faults{Delay: 3 * time.Millisecond})
			got, err := run(t, h, time.Minute, "semantics", "4", name)
			require.NoError(t, err, got)
			require.NotZero(t, h.Moved.Load())
			want := ""
			for range 4 { // where the kernel's answer depends on how busy the machine is, any of its answers is right
				want, err = run(t, nil, time.Minute, "semantics", "4", name)
				if err == nil && want == got {
					return
				}
			}
			require.NoError(t, err, want)
			require.Equal(t, want, got)
		})
	}
}

// TestEndsAreTold checks that a process says CLOSED for an end that it was granted, even if a child has made the end
// native: until then the gateway keeps its memory. A few ends are not told: those whose grant came when another process
// had closed them, and lies unread.
func TestEndsAreTold(t *testing.T) {
	h := open(t, Faults{Delay: 3 * time.Millisecond})
	got, err := run(t, h, time.Minute, "semantics", "4", "forked_early")
	require.NoError(t, err, got)
	told := func() bool { return 8*h.Closed.Load() >= 7*2*h.Promoted.Load() }
	require.Eventually(t, told, 30*time.Second, time.Millisecond, "%d of twice %d", &h.Closed, &h.Promoted)
}

// TestRingGoesOn checks that a stream which has gone by the kernel while its reader stood still goes by the ring again,
// although its writer never waits: after a short time at once, after a long one when it has asked again.
func TestRingGoesOn(t *testing.T) {
	for _, name := range []string{"goes_on", "asks_again"} {
		t.Run(name, func(t *testing.T) {
			want, err := run(t, nil, time.Minute, "semantics", "4", name)
			require.NoError(t, err, want)
			h := open(t, Faults{})
			got, err := run(t, h, time.Minute, "semantics", "4", name)
			require.NoError(t, err, got)
			require.Equal(t, want, got)
			require.EqualValues(t, 2, h.Promoted.Load(), "two connections, or one twice")
			require.Greater(t, h.Moved.Load(), int64(48<<20), "of at least 64 MiB")
		})
	}
}

// TestCallsAreWhole checks that a call in which the stream goes back to the kernel does not come back short.
func TestCallsAreWhole(t *testing.T) {
	want, err := run(t, nil, time.Minute, "semantics", "4", "slowly")
	require.NoError(t, err, want)
	for i := range 8 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			h := open(t, Faults{Recall: 1, Both: true, Within: 2 * time.Second, After: 400, Delay: time.Millisecond})
			got, err := run(t, h, time.Minute, "semantics", "4", "slowly")
			require.NoError(t, err, got)
			require.Equal(t, want, got)
		})
	}
}

// TestCarrierMayBeSlow checks that what a killed process has written comes however long that takes.
func TestCarrierMayBeSlow(t *testing.T) {
	want, err := run(t, nil, time.Minute, "semantics", "4", "killed_after_more")
	require.NoError(t, err, want)
	h := open(t, Faults{Slow: 700 * time.Millisecond, Whole: true})
	got, err := run(t, h, time.Minute, "semantics", "4", "killed_after_more")
	require.NoError(t, err, got)
	require.Equal(t, want, got)
}

// cases cover processes that share an end, what ends a stream, and which side ends it.
var cases = []string{
	"alarmed", "answered_by_reset", "bad_lengths", "other_pids", "child_passes", "edge_drained", "room", "closed_full", "closed_much", "closed_unsent", "range_above", "shut_full", "daemons", "ends_after_spill", "ends_unasked", "exits_writing", "fork_server", "forked_early", "half", "half_read", "half_written", "inherits", "left_to_child",
	"counts", "shown", "in_doubt", "killed", "killed_after_writing", "killed_after_reading", "numbers_left", "lingers", "lingers_at_exit", "oob_last", "passed_on", "passed_at_end", "reads_by_closed", "reset_half", "shut_reader", "exclusive_busy", "low_behind", "counted_behind", "shut_early", "files_interrupted", "reset_then_splice", "reset_in_messages", "without_numbers", "timeout_later", "unread", "writes_to_closed",
	"asks_a_program", "bad_sets", "both_first", "ends_unread", "closed_by_another", "connects_again", "killed_after_spill", "killed_with_unread", "bit_by_bit", "low_shown", "reset_behind_bytes", "unacknowledged", "unreaped", "killed_with_both_full", "left_to_forked", "orphaned", "left_at_exit", "killed_with_one_unread", "survived_pings", "destroyed", "peeks_across", "oob_passed", "left_and_reset",
}

// TestSanitizers checks that the sanitizers find nothing in the library.
func TestSanitizers(t *testing.T) {
	b := shared.For(t)
	for _, c := range []struct {
		name  string
		with  world.Sanitizer
		env   []string
		modes string
		how   string
	}{
		{"addresses", world.Addresses, []string{"ASAN_OPTIONS=abort_on_error=0:detect_leaks=0", "UBSAN_OPTIONS=print_stacktrace=1"}, "??", "a+"},
		{"threads block", world.Threads, []string{"TSAN_OPTIONS=report_thread_leaks=0 symbolize=0 halt_on_error=1"}, "BQ", "-+"},
		{"threads wait", world.Threads, []string{"TSAN_OPTIONS=report_thread_leaks=0 symbolize=0 halt_on_error=1"}, "LE", "-+"},
	} {
		t.Run(c.name, func(t *testing.T) {
			program, err := b.Sanitized(c.with, "stress")
			require.NoError(t, err)
			h := open(t, Faults{Delay: 3 * time.Millisecond}) // no recalls: after one, FIONREAD may say less than a peek
			said, err := start(t, h, 5*time.Minute, c.env, program, c.modes, "?", "0.3", seed(t), "?", c.how, "15")
			require.NoError(t, err, said)
			require.NotZero(t, h.Moved.Load())
		})
	}
}

// TestAgain checks that an end that has gone back to the kernel asks to be promoted once more.
func TestAgain(t *testing.T) {
	const rounds = 6
	t.Setenv("STRESS_RECALLS", "1")
	h := open(t, Faults{Recall: 1, Both: true, Within: 200 * time.Millisecond, Delay: time.Millisecond})
	said, err := run(t, h, 2*time.Minute, "stress", "??", "4", "1", seed(t), "0", "-", strconv.Itoa(rounds))
	require.NoError(t, err, said)
	require.Greater(t, h.Promoted.Load(), int64(rounds), said)
}

// TestAgainOneWay checks the same for a stream whose receiver sends nothing, so that one direction is never opened.
func TestAgainOneWay(t *testing.T) {
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip("no iperf3")
	}
	// A gateway passes on the RECALL of a library, which also asks whether its peer opens. Nobody asks for this one, so it waits for OPEN.
	h := open(t, Faults{Recall: 1, Both: true, Within: 200 * time.Millisecond, After: 1, Delay: time.Millisecond})
	preload := []string{"LD_PRELOAD=" + shared.For(t).Library()}
	port := strconv.Itoa(20000 + int(matrix.Seed(t)%20000))
	var server sync.WaitGroup
	server.Go(func() {
		out, err := start(t, h, time.Minute, preload, "iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", port)
		assert.NoError(t, err, out)
	})
	defer server.Wait()
	said, err := "", error(nil)
	for range 50 { // until it listens
		if said, err = start(t, h, time.Minute, preload, "iperf3", "-c", "127.0.0.1", "-p", port, "-t", "3"); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	require.NoError(t, err, said)
	require.Greater(t, h.Promoted.Load(), int64(2), said)
}
