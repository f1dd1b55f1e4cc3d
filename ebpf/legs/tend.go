package legs

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/fdpass"
)

const (
	// tendEvery is how often the keepers are checked. A request that fails triggers a check immediately.
	tendEvery = 200 * time.Millisecond
	// The first atOnce spares are made immediately, if each death comes less than calm after the one before. Further
	// ones are made after a pause, which doubles each time.
	atOnce   = 8
	calm     = time.Minute
	minPause = 100 * time.Millisecond
	maxPause = 10 * time.Second
)

// pace bounds how often dying processes are replaced. It belongs to one goroutine.
type pace struct {
	deaths int       // in a row, less than calm apart
	last   time.Time // when the last one was
}

// death records a death.
func (p *pace) death(now time.Time) {
	if now.Sub(p.last) > calm {
		p.deaths = 0
	}
	p.deaths, p.last = p.deaths+1, now
}

// due returns when the next process may be made.
func (p *pace) due() time.Time {
	if p.deaths <= atOnce {
		return p.last
	}
	pause := maxPause
	if n := p.deaths - atOnce - 1; n < 7 {
		pause = min(maxPause, minPause<<n)
	}
	return p.last.Add(pause)
}

// tending is the goroutine that keeps a spare ready.
type tending struct {
	log   *slog.Logger
	prove func() // guarded by the mutex of the namespace
	stop  chan struct{}
	done  chan struct{}
	once  sync.Once
}

func (t *tending) end() {
	t.once.Do(func() { close(t.stop) })
	<-t.done
}

// Tend keeps a spare ready from now on: a process in the namespace that becomes the keeper when the keeper dies. Only a
// process that is already there can make one, because entering the namespace takes a privilege that the gateway gives
// up. prove is called after the spare has become the keeper; a later call of Tend replaces it. Tend does not wait.
func (n *Namespace) Tend(log *slog.Logger, prove func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tend != nil {
		n.tend.prove = prove
		return
	}
	n.tend = &tending{log: log, prove: prove, stop: make(chan struct{}), done: make(chan struct{})}
	go n.run(n.tend)
}

// run maintains keeper and spare until the namespace is closed.
func (n *Namespace) run(t *tending) {
	defer close(t.done)
	var p pace
	for was, wait := n.current(), time.Duration(0); ; {
		timer := time.NewTimer(wait)
		select {
		case <-t.stop:
			timer.Stop()
			return
		case <-n.wants:
		case <-timer.C:
		}
		timer.Stop()
		is := n.current()
		if is.gone() {
			if next := n.after(is); next != nil {
				is = next
			}
		}
		if is != was {
			was = is
			p.death(time.Now())
			t.log.Warn("keeper of the legs' namespace is gone, its spare has taken its place")
			n.proved(t)
		}
		wait = n.see(t, is, &p)
	}
}

// proved requests a proof of the legs of the new keeper.
func (n *Namespace) proved(t *tending) {
	n.mu.Lock()
	prove := t.prove
	n.mu.Unlock()
	prove()
}

// see makes a spare if there is none, and returns when to check again.
func (n *Namespace) see(t *tending, keeper *client, p *pace) time.Duration {
	n.mu.Lock()
	spare := n.spare
	if spare != nil && spare.gone() {
		n.spare = nil
	}
	n.mu.Unlock()
	switch {
	case keeper.gone():
		return tendEvery // no process could make one
	case spare != nil && !spare.gone():
		return tendEvery
	case spare != nil:
		spare.close()
		p.death(time.Now())
		t.log.Warn("spare of the legs' keeper is gone")
	}
	if wait := time.Until(p.due()); wait > 0 {
		return min(wait, tendEvery)
	}
	made, err := makeSpare(keeper)
	if err != nil {
		if keeper.gone() { // or the namespace is closed
			return 0
		}
		p.death(time.Now())
		t.log.Warn("no spare of the legs' keeper", "error", err)
		return min(max(0, time.Until(p.due())), tendEvery)
	}
	n.mu.Lock()
	n.spare = made
	n.mu.Unlock()
	return tendEvery
}

// makeSpare makes a keeper start its spare.
func makeSpare(keeper *client) (*client, error) {
	_, fds, err := keeper.ask(message{op: opSpare})
	if err != nil {
		return nil, err
	}
	if len(fds) != 1 {
		fdpass.CloseFDs(fds)
		return nil, fmt.Errorf("%w: %d descriptors instead of 1", ErrKeeper, len(fds))
	}
	return newClient(os.NewFile(uintptr(fds[0]), "legs"))
}

const (
	// A leg becomes wide once wideAfter bytes were read from it, with no second below wideRate.
	wideAfter = 16 << 20
	wideRate  = 4 << 20
	// wideRoom is how many bytes a wide leg may hold, if tcp_rmem allows twice as many: the kernel also counts its own
	// overhead.
	wideRoom = 1 << 20
)

// Room decides how much a leg may hold of what its application sends. The zero value is that of a new leg.
//
//	as a socket of the host begins ──  16 MiB, 4 MiB or more of them in each second ──► wide
//
// The kernel's own auto-tuning would take the initial burst, which fills all buffers on the path, for the pace of the
// reader even if the reader is slow. What is queued in a wide leg is one block of memory of up to half a MiB, which
// counts until all of it has been read. So the application proceeds in steps of that size, and TCP_USER_TIMEOUT
// includes the time of a step.
//
// A Room is not safe for concurrent use.
type Room struct {
	began  time.Time // start of the current second
	recent int       // read in that second
	bytes  int       // read since the last second below wideRate
	wide   bool
}

// Read counts n bytes that were read from a leg in a turn that began at now, and widens the leg when it is due.
func (r *Room) Read(fd, n int, now time.Time) {
	if r.wide {
		return
	}
	if passed := now.Sub(r.began); passed > time.Second {
		if r.recent < wideRate || passed > 2*time.Second {
			r.bytes = 0
		}
		r.began, r.recent = now, 0
	}
	r.recent += n
	if r.bytes += n; r.bytes >= wideAfter && r.recent >= wideRate {
		r.wide = true
		widen(fd, min(wideRoom, mostRoom()))
	}
}

// mostRoom returns how many bytes the host allows a socket to hold: half of the maximum of tcp_rmem, which
// SO_RCVBUFFORCE ignores.
var mostRoom = sync.OnceValue(func() int {
	text, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_rmem")
	var least, first, most int
	if _, err := fmt.Sscan(string(text), &least, &first, &most); err != nil {
		return wideRoom
	}
	return most / 2
})

// widen enlarges a leg's buffer. Without the privilege the host's limit (net.core.rmem_max) bounds it; a leg that stays
// smaller is only slower.
func widen(fd, room int) {
	if has, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil || has >= 2*room {
		return
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, room)
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, room)
}
