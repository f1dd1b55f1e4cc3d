package e2e

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/apps"
)

const (
	// oneCosts and laterCosts are what one connect() may take longer than natively,
	// and all but the first in the median: one of many can meet a busy machine.
	oneCosts   = 50 * time.Millisecond
	laterCosts = 5 * time.Millisecond
	// mostRetries is how often what was slow is looked at once more, alone and from
	// the beginning: the machine is shared. What is too slow by hopeless, twice, is not
	// so for that.
	mostRetries = 4
	hopeless    = 100 * time.Millisecond
)

// timed are the connections whose time is judged one by one, besides the median.
var timed = []int{0, 1, 2, 3, 4, 5, 9, manyVisits - 1}

// compare visits all targets and notes what differs from the native run.
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

// compareSilent makes the visits that get no answer all at a time.
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

// sameOutcomes notes connections whose outcome is another than natively.
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

// tellWhy asserts that both gateways tell why connections to some targets are native.
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
	c.flush() // or the client's gateway remembers, and makes no offer
	f := fallback{w: c.world, t: c.t, from: c.h1, client: remote("peer_no_option"), server: local(k.alone)}
	f.inTime(func() apps.Event {
		seen, err := c.visits(k, 1)
		require.NoError(c.t, err)
		require.Equal(c.t, k.words(c.t, k.want), k.outcome(seen[0]), "%v", k)
		return apps.Event{Local: seen[0].Local, Remote: k.destination(c.t)}
	})
}

// expected is how many connections a client makes that succeed.
func expected(when string) int {
	if when == withGateways {
		return manyVisits
	}
	return severalVisits
}

func (c *hostCell) problem(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// firstOf lists the first numbers of many.
func firstOf(which []int) string {
	text := fmt.Sprint(which[:min(6, len(which))])
	if len(which) > 6 {
		text += fmt.Sprintf(" ... (%d)", len(which))
	}
	return text
}

// slow are connections by their index that took longer than they may, with their
// best time so far; -1 is the median of all but the first.
type slow map[int]time.Duration

const theMedian = -1

// sameTimes notes connections that are slow again and again, from the beginning.
func (c *hostCell) sameTimes(when string, k call, seen, native []apps.Event) {
	late := tooLong(seen, native)
	for try := 0; try < mostRetries && len(late) > 0 && (try < 1 || !late.hopeless()); try++ {
		if when == withGateways {
			c.restart()
		}
		again, err := c.visits(k, len(seen))
		require.NoError(c.t, err)
		if !c.sameOutcomes(when, k, again, native) {
			return
		}
		late = late.and(tooLong(again, native))
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

// hopeless reports whether all is so slow that another try changes nothing.
func (s slow) hopeless() bool {
	for _, d := range s {
		if d < slowed(hopeless)+mayCost(oneCosts) {
			return false
		}
	}
	return true
}

// and keeps what both have, with the shorter time.
func (s slow) and(other slow) slow {
	both := slow{}
	for i, d := range s {
		if e, ok := other[i]; ok {
			both[i] = min(d, e)
		}
	}
	return both
}

func tooLong(seen, native []apps.Event) slow {
	late := slow{}
	usual := median(native)
	for _, i := range timed {
		if i >= len(seen) {
			continue
		}
		if d := took(seen, i); d > max(usual, took(native, i))+mayCost(oneCosts) {
			late[i] = d
		}
	}
	// A SYN that natively is sent again takes the second and some that its timer takes.
	if d := median(seen); d > usual+max(mayCost(laterCosts), usual/50) {
		late[theMedian] = d
	}
	return late
}

// mayCost is what a connect() may take longer than natively on this machine. An emulated
// one has its own price of a process that wakes up: there a connect() is late that has
// waited for a timer, the gateways' or the kernel's for its SYN.
func mayCost(d time.Duration) time.Duration {
	if slowness() > 1 {
		return min(slowed(handshakeTimeout), afterRetry) / 2
	}
	return d
}

func took(all []apps.Event, i int) time.Duration {
	return time.Duration(all[min(i, len(all)-1)].ConnectMicros) * time.Microsecond
}

// median is that of connect() in all connections but the first.
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
