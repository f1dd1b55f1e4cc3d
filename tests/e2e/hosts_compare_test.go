package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/apps"
)

const (
	// oneCosts is how much longer than natively a single connect() may take, and laterCosts the median of all but the
	// first: one of many may meet a busy machine.
	oneCosts   = 50 * time.Millisecond
	laterCosts = 5 * time.Millisecond
	// mostRetries is how often a slow target is measured again, alone and from the beginning, since the machine is
	// shared; then the gateways' wait for a processor, on average per connection, does not count. One that is too slow
	// by hopeless, twice, is not slow because of that.
	mostRetries = 4
	hopeless    = 100 * time.Millisecond
)

// timed are the connections whose time is judged one by one, apart from the median.
var timed = []int{0, 1, 2, 3, 4, 5, 9, manyVisits - 1}

// compare visits all targets and records what differs from the native run.
func (c *hostCell) compare(when string, targets []target, native map[string][]apps.Event) {
	c.t.Helper()
	var silent []call
	for _, k := range c.calls(targets) {
		if k.silent() {
			silent = append(silent, k)
			continue
		}
		seen, err := c.visits(k, expected(when))
		require.NoError(c.t, err)
		if c.sameOutcomes(when, k, seen, native[k.String()]) {
			c.sameTimes(when, k, seen, native[k.String()])
		}
	}
	c.compareSilent(when, silent)
}

// compareSilent makes the visits that get no answer all at once.
func (c *hostCell) compareSilent(when string, calls []call) {
	results := make([][]apps.Event, len(calls))
	errs := make([]error, len(calls))
	var all sync.WaitGroup
	for i, k := range calls {
		all.Go(func() { results[i], errs[i] = c.visits(k, 1) })
	}
	all.Wait()
	for i, k := range calls {
		require.NoError(c.t, errs[i])
		c.sameOutcomes(when, k, results[i], nil)
	}
}

// sameOutcomes records connections whose outcome differs from the native one.
func (c *hostCell) sameOutcomes(when string, k call, seen, native []apps.Event) bool {
	want := k.words(c.t, k.want)
	wrong := map[string][]int{}
	for i, o := range seen {
		if got := k.outcome(o); got != want {
			wrong[got] = append(wrong[got], i+1)
		}
	}
	if end := len(seen) - 1; native != nil && !seen[end].TookTooLong() && len(seen) < min(len(native), expected(when)) {
		c.problem("%s, %v: only %d connections in the time of the client, natively %d", when, k, len(seen), len(native))
	}
	for got, which := range wrong {
		c.problem("%s, %v: %q instead of %q: %s of %d connections", when, k, got, want, firstOf(which), len(seen))
	}
	return len(wrong) == 0
}

// tellWhy requires that both gateways report why connections to some targets are native.
func (c *hostCell) tellWhy(targets []target) {
	c.t.Helper()
	for _, k := range c.calls(targets) {
		if k.alone != "" {
			c.tellsWhy(k)
		}
	}
}

func (c *hostCell) tellsWhy(k call) {
	c.t.Helper()
	c.flush() // otherwise the client's gateway remembers, and makes no offer
	f := fallback{w: c.world, t: c.t, from: c.h1, client: remote("peer_no_option"), server: local(k.alone)}
	f.inTime(func() apps.Event {
		seen, err := c.visits(k, 1)
		require.NoError(c.t, err)
		require.Equal(c.t, k.words(c.t, k.want), k.outcome(seen[0]), "%v", k)
		return apps.Event{Local: seen[0].Local, Remote: k.destination(c.t)}
	})
}

// expected returns how many connections a client makes that succeed.
func expected(when string) int {
	if when == withGateways {
		return manyVisits
	}
	return severalVisits
}

func (c *hostCell) problem(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// firstOf lists the first few of many numbers.
func firstOf(which []int) string {
	text := fmt.Sprint(which[:min(6, len(which))])
	if len(which) > 6 {
		text += fmt.Sprintf(" ... (%d)", len(which))
	}
	return text
}

// slow maps the indexes of connections that took too long to their best time so far; -1 is the median of all but the
// first.
type slow map[int]time.Duration

const theMedian = -1

// sameTimes records connections that are slow each time they are measured from the beginning.
func (c *hostCell) sameTimes(when string, k call, seen, native []apps.Event) {
	late := tooLong(seen, native, 0)
	for try := 0; try < mostRetries && len(late) > 0 && (try < 1 || !late.hopeless()); try++ {
		if when == withGateways {
			c.restart()
		}
		before := c.waitedForCPU()
		again, err := c.visits(k, len(seen))
		require.NoError(c.t, err)
		waited := max(0, c.waitedForCPU()-before) / time.Duration(len(again))
		if !c.sameOutcomes(when, k, again, native) {
			return
		}
		late = late.and(tooLong(again, native, waited))
	}
	for _, i := range timed {
		if best, ok := late[i]; ok {
			c.problem("%s, %v: connect() of connection %d took %v at best, natively %v", when, k, i+1, best, took(native, i))
		}
	}
	if best, ok := late[theMedian]; ok {
		c.problem("%s, %v: connect() took %v in the median at best, natively %v", when, k, best, median(native))
	}
}

// hopeless tells whether all are so slow that another try would not change it.
func (s slow) hopeless() bool {
	for _, d := range s {
		if d < slowed(hopeless)+mayCost(oneCosts) {
			return false
		}
	}
	return true
}

// and returns what is in both, with the shorter times.
func (s slow) and(other slow) slow {
	both := slow{}
	for i, d := range s {
		if e, ok := other[i]; ok {
			both[i] = min(d, e)
		}
	}
	return both
}

// tooLong returns the connections that took longer than natively and the time that the gateways waited.
func tooLong(seen, native []apps.Event, waited time.Duration) slow {
	late := slow{}
	usual := median(native)
	for _, i := range timed {
		if i >= len(seen) {
			continue
		}
		if d := took(seen, i); d > max(usual, took(native, i))+mayCost(oneCosts)+waited {
			late[i] = d
		}
	}
	// A SYN that is also retransmitted natively takes the second and the inaccuracy of its timer.
	if d := median(seen); d > usual+max(mayCost(laterCosts), usual/50)+waited {
		late[theMedian] = d
	}
	return late
}

// waitedForCPU returns how long all threads of the gateways have been runnable without running
// (proc_pid_schedstat(5)). A busy machine keeps them waiting, and hardly the kernel, which is all that connects natively.
func (w *world) waitedForCPU() (sum time.Duration) {
	for _, g := range w.gateways {
		for _, pid := range g.processes() {
			stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
			for _, path := range stats {
				var ran, waited time.Duration
				text, _ := os.ReadFile(path) // it may have ended
				_, _ = fmt.Sscan(string(text), &ran, &waited)
				sum += waited
			}
		}
	}
	return sum
}

// mayCost returns how much longer than natively a connect() may take on this machine. On an emulated machine waking a
// process takes long; there only a connect() that waited for a timer counts as late: the gateways', or the kernel's
// for its SYN.
func mayCost(d time.Duration) time.Duration {
	if slowness() > 1 {
		return min(slowed(handshakeTimeout), afterRetry) / 2
	}
	return d
}

func took(all []apps.Event, i int) time.Duration {
	return time.Duration(all[min(i, len(all)-1)].ConnectMicros) * time.Microsecond
}

// median returns the median time of connect() over all connections but the first.
func median(all []apps.Event) time.Duration {
	var d []time.Duration
	for i := range all {
		if i > 0 || len(all) == 1 {
			d = append(d, took(all, i))
		}
	}
	slices.Sort(d)
	return d[len(d)/2]
}
