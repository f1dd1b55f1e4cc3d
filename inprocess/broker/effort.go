package broker

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

const (
	// effortPerSecond is the processor time of the broker that one user's programs may cost, effortAtOnce what they may
	// have saved up. Programs are looked at as long as half of that is left: the rest is for what must not wait.
	effortPerSecond = time.Second / 2
	effortAtOnce    = 2 * time.Second
	// looksAtOnce are the programs of a user that are looked at at a time, lookWait how long the next one waits. Files of
	// a program may be of a file system that never answers.
	looksAtOnce = 4
	lookWait    = 100 * time.Millisecond
)

// effort is what the broker does for one user.
type effort struct {
	clients int           // that have it; guarded by the broker's lock
	left    *rate.Limiter // in nanoseconds of processor time
	looks   chan struct{}
}

func newEffort() *effort {
	return &effort{left: rate.NewLimiter(rate.Limit(effortPerSecond), int(effortAtOnce)), looks: make(chan struct{}, looksAtOnce)}
}

// spend runs f and counts its processor time. owed is how long the caller should wait for what is owed then.
func (e *effort) spend(f func()) (owed time.Duration) {
	runtime.LockOSThread()
	begun := threadTime()
	f()
	spent := threadTime() - begun
	runtime.UnlockOSThread()
	return e.left.ReserveN(time.Now(), int(min(spent, effortAtOnce))).Delay()
}

// look runs f, which looks at a program; false: there is no time for it.
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

// rested reports whether nothing would be lost with it.
func (e *effort) rested() bool { return e.clients == 0 && e.left.Tokens() >= float64(effortAtOnce) }

// threadTime is the processor time that this thread has had.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}
