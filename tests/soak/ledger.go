package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// totals are the results of a soak.
type totals struct{ flows, bytes, faults, switches, errors int64 }

// String returns the last line of the output.
func (t totals) String() string {
	return fmt.Sprintf("flows=%d bytes=%d faults=%d switches=%d errors=%d", t.flows, t.bytes, t.faults, t.switches, t.errors)
}

// fault is one fault as it happened.
type fault struct {
	what       string
	begin, end time.Time // end: zero while it lasts
}

// ledger counts, and records which faults there were and when. It is safe for concurrent use.
type ledger struct {
	out   io.Writer
	start time.Time

	mu     sync.Mutex // guards everything below
	total  totals
	faults []*fault
}

// at returns the time from the start to t, as it is printed.
func (l *ledger) at(t time.Time) string {
	d := t.Sub(l.start).Round(10 * time.Millisecond)
	return fmt.Sprintf("%02d:%05.2f", int(d.Minutes()), (d % time.Minute).Seconds())
}

// say prints one line.
func (l *ledger) say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.out, "%s %s\n", l.at(time.Now()), fmt.Sprintf(format, args...))
}

// add counts the work of a program.
func (l *ledger) add(flows, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total.flows += flows
	l.total.bytes += bytes
}

// switched sets the number of demotions.
func (l *ledger) switched(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total.switches = n
}

// begin counts a fault and returns a function that ends it.
func (l *ledger) begin(what string) (end func()) {
	f := &fault{what: what, begin: time.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total.faults++
	l.faults = append(l.faults, f)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		f.end = time.Now()
	}
}

// before is how long a fault that has ended may still matter: after each loss the kernel's TCP and that of the wire
// leg wait twice as long.
const before = 10 * time.Second

// fail counts an error of something that began at a time, and prints it with the faults around it.
func (l *ledger) fail(began time.Time, what, detail string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total.errors++
	now := time.Now()
	var b strings.Builder
	fmt.Fprintf(&b, "%s ERROR %d: %s (began %s)\n", l.at(now), l.total.errors, what, l.at(began))
	for line := range strings.Lines(strings.TrimSpace(detail)) {
		fmt.Fprintf(&b, "      %s\n", strings.TrimRight(line, "\n"))
	}
	for _, f := range l.faults {
		switch {
		case f.end.IsZero():
			fmt.Fprintf(&b, "      fault %s - now      %s\n", l.at(f.begin), f.what)
		case f.end.After(began.Add(-before)):
			fmt.Fprintf(&b, "      fault %s - %s %s\n", l.at(f.begin), l.at(f.end), f.what)
		}
	}
	_, _ = io.WriteString(l.out, b.String())
}

// sum returns the totals so far.
func (l *ledger) sum() totals {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// under names the current faults.
func (l *ledger) under() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var now []string
	for _, f := range l.faults {
		if f.end.IsZero() {
			now = append(now, f.what)
		}
	}
	if len(now) == 0 {
		return "none"
	}
	return strings.Join(now, "; ")
}
