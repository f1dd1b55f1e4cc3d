package inprocess

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/tests/inprocess/world"
)

// long returns the duration in SMCGW_INPROCESS, or d if it is not set.
func long(t *testing.T, d time.Duration) time.Duration {
	t.Helper()
	return lengthOf(t, "SMCGW_INPROCESS", d)
}

// lengthOf returns the duration in an environment variable, or d if it is not set.
func lengthOf(t *testing.T, variable string, d time.Duration) time.Duration {
	t.Helper()
	if text := os.Getenv(variable); text != "" {
		var err error
		d, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	return d
}

// TestModel runs random connections as programs use them, for half a minute or SMCGW_INPROCESS, and compares every
// byte.
func TestModel(t *testing.T) {
	t.Parallel()
	b := shared.For(t)
	r, err := b.Model(t.Context(), matrix.Seed(t), long(t, 30*time.Second))
	t.Log(r)
	require.NoError(t, err)
	require.Greater(t, r.Inside, uint64(20), "ends killed at an instruction of the library")
	require.NotZero(t, r.Brokers)
	require.NotZero(t, r.Toggles)
}

// proof returns how long a test runs that only make proof runs, and skips it elsewhere.
func proof(t *testing.T) time.Duration {
	t.Helper()
	length := long(t, 0)
	if length == 0 {
		t.Skip("make proof runs it")
	}
	return length
}

// TestCrowd is TestModel for programs that have many connections at once.
func TestCrowd(t *testing.T) {
	t.Parallel()
	length := proof(t)
	r, err := shared.For(t).Crowd(t.Context(), matrix.Seed(t), length)
	t.Log(r)
	require.NoError(t, err)
	require.NotZero(t, r.Crowd)
	require.NotZero(t, r.Brokers)
	require.NotZero(t, r.Toggles)
}

// sanitizers has the options of each sanitizer. The search for leaks is off: it traces a process that exits, and the
// stops and signals of the test can leave the tracer waiting for ever; the library allocates only for sets.
var sanitizers = map[world.Sanitizer][]string{
	world.Addresses: {"ASAN_OPTIONS=abort_on_error=0:detect_leaks=0", "UBSAN_OPTIONS=print_stacktrace=1"},
	world.Threads:   {"TSAN_OPTIONS=report_thread_leaks=0 symbolize=0 halt_on_error=1"},
}

// TestSanitizers checks that the sanitizers of addresses, undefined behaviour and threads find nothing in the library
// in random connections, for 10 seconds each or SMCGW_INPROCESS. The thread sanitizer sees both ends: they are in one
// process, which has one address for each memory as long as no ring grows.
func TestSanitizers(t *testing.T) {
	t.Parallel()
	b, seed := shared.For(t), matrix.Seed(t)
	for _, c := range []struct {
		name  string
		with  world.Sanitizer
		modes string
		args  []string
		rings broker.Limits
	}{
		{"addresses", world.Addresses, "??", []string{"?", "a+"}, broker.Limits{}},
		{"threads block", world.Threads, "BQ", []string{"?", "-+"}, broker.Limits{}},
		{"threads wait", world.Threads, "LE", []string{"?", "-+"}, smallest()},
		{"threads mixed", world.Threads, "BP", []string{"4096", "-+"}, smallest()},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			program, err := b.Sanitized(c.with, "stress")
			require.NoError(t, err)
			w := openWorld(t, "", broker.Config{Thresholds: broker.Thresholds{Calls: 1}, Limits: c.rings})
			length := long(t, 10*time.Second)
			args := append([]string{c.modes, "?", "0.5", strconv.FormatUint(seed, 10)}, c.args...)
			said, err := run(w, length+5*time.Minute, sanitizers[c.with], program, append(args, "1000000", strconv.Itoa(int(length/time.Second)))...)
			require.NoError(t, err, said)
			require.Contains(t, said, "ok: rounds")
			require.NotZero(t, w.Moved())
		})
	}
}

// TestCrowdSanitized checks that the address sanitizer finds nothing in the library in programs of many connections.
func TestCrowdSanitized(t *testing.T) {
	t.Parallel()
	length := proof(t)
	program, err := shared.For(t).Sanitized(world.Addresses, "crowd")
	require.NoError(t, err)
	w := openWorld(t, "", broker.Config{Thresholds: broker.Thresholds{Calls: 1}})
	said, err := run(w, length+5*time.Minute, sanitizers[world.Addresses], program, strconv.FormatUint(matrix.Seed(t), 10), "1000000", strconv.Itoa(int(length/time.Second)))
	require.NoError(t, err, said)
	require.Contains(t, said, "ok: rounds")
	require.NotZero(t, w.Moved())
}

// TestSanitizedAlone checks that programs built with a sanitizer run with the preloaded library, and are promoted.
func TestSanitizedAlone(t *testing.T) {
	for _, with := range []world.Sanitizer{world.Addresses, world.Threads} {
		t.Run(string(with), func(t *testing.T) {
			program, err := shared.For(t).Alone(with, "foreign")
			require.NoError(t, err)
			said, err := run(newWorld(t, broker.Thresholds{Calls: 1}), time.Minute, nil, program)
			require.NoError(t, err, said)
			require.Equal(t, "promoted\n", said)
		})
	}
}

// smallest returns limits that keep each connection at the smallest ring: the budget's share is one such ring.
func smallest() broker.Limits {
	const share = 1024
	memory := share * 3 * inprocess.EndSize(inprocess.OrderMin)
	return broker.Limits{Memory: memory, MemoryPerUser: memory, Share: share}
}
