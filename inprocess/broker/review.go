package broker

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/inprocess"
)

// sentBack maps slab entries whose ends must send by the kernel to the reason. A map is never modified, only replaced.
type sentBack map[uint32]inprocess.Why

// Review judges all promoted ends again. Those for which judge returns a reason send by the kernel from now on, and
// those of the previous review that it no longer objects to use the ring again. If the broker knows the connection, its
// other end follows. A nil judge objects to none, and costs nothing. Review returns how many ends are newly sent back.
func (b *Broker) Review(judge func(End) inprocess.Why) (more int) {
	found := map[slabKey]sentBack{}
	if judge != nil {
		s, _, slabs, over := b.known()
		s.readSlabs(slabs, over)
		found = s.review(judge)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(found) == 0 && len(b.sentBack) == 0 {
		return 0
	}
	for key, ends := range found {
		if b.slabs[key] == 0 { // its processes have left
			delete(found, key)
			continue
		}
		for index, why := range ends {
			if b.sentBack[key][index] == inprocess.WhyNone {
				b.core.counts.Returned[why]++
				more++
			}
		}
	}
	b.sentBack = found
	b.publish(false)
	return more
}

func (s *Snapshot) review(judge func(End) inprocess.Why) map[slabKey]sentBack {
	conns := map[uint64]inprocess.Why{}
	whys := make([]inprocess.Why, len(s.Ends))
	for i := range s.Ends {
		e := &s.Ends[i]
		if !e.known() && !e.Report.Mapped() {
			continue
		}
		if whys[i] = judge(*e); whys[i] != inprocess.WhyNone && e.known() {
			conns[e.ID] = whys[i]
		}
	}
	found := map[slabKey]sentBack{}
	for i := range s.Ends {
		e := &s.Ends[i]
		if why, also := conns[e.ID]; also && e.known() && whys[i] == inprocess.WhyNone {
			whys[i] = why
		}
		if whys[i] == inprocess.WhyNone {
			continue
		}
		if found[e.slab] == nil {
			found[e.slab] = sentBack{}
		}
		found[e.slab][inprocess.Index(e.Tag)] = whys[i]
	}
	return found
}

// known reports whether this broker paired the end's connection. Of others, the ID is only what a process says.
func (e *End) known() bool { return e.ID != 0 && !e.Since.IsZero() }

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
