package broker

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

const (
	// effortPerSecond is the processor time of the broker that one user's programs may cost per second, effortAtOnce
	// how much of it they may have saved up. Programs are scanned only while half of effortAtOnce is left: the rest is
	// for work that must not wait.
	effortPerSecond = time.Second / 2
	effortAtOnce    = 2 * time.Second
	// looksAtOnce is how many programs of one user are scanned at the same time, lookWait how long the next one waits.
	// The files of a program may be on a file system that never answers.
	looksAtOnce = 4
	lookWait    = 100 * time.Millisecond
)

// effort is the processor time that one user may cost the broker.
type effort struct {
	clients int           // that share it; guarded by the broker's lock
	left    *rate.Limiter // in nanoseconds of processor time
	looks   chan struct{}
}

func newEffort() *effort {
	return &effort{left: rate.NewLimiter(rate.Limit(effortPerSecond), int(effortAtOnce)), looks: make(chan struct{}, looksAtOnce)}
}

// spend runs f and charges its processor time. It returns how long the caller should wait to work off the debt.
func (e *effort) spend(f func()) (owed time.Duration) {
	runtime.LockOSThread()
	begun := threadTime()
	f()
	spent := threadTime() - begun
	runtime.UnlockOSThread()
	return e.charge(time.Now(), spent)
}

func (e *effort) charge(now time.Time, spent time.Duration) (owed time.Duration) {
	for ; spent > 0; spent -= effortAtOnce { // the limiter takes no more at once
		owed = e.left.ReserveN(now, int(min(spent, effortAtOnce))).DelayFrom(now)
	}
	return owed
}

// look runs f, which scans a program. It returns false, without running f, if the user has no time left for it.
func (e *effort) look(ctx context.Context, f func()) bool {
	if e.left.Tokens() < float64(effortAtOnce)/2 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	select {
	case e.looks <- struct{}{}:
		defer func() { <-e.looks }()
		f()
		return true
	case <-ctx.Done():
		return false
	}
}

// rested reports whether the effort can be forgotten: no client uses it, and its budget is full.
func (e *effort) rested() bool { return e.clients == 0 && e.left.Tokens() >= float64(effortAtOnce) }

// threadTime returns the processor time that this thread has used.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}
