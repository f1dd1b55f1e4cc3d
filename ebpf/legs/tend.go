package legs

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/smcgw/smcgw/internal/fdpass"
)

const (
	// tendEvery is how often the keepers are looked at; a request that fails is noticed
	// at once.
	tendEvery = 200 * time.Millisecond
	// A spare is made at once after so many deaths, each less than calm after the one
	// before; then after a pause, which doubles.
	atOnce   = 8
	calm     = time.Minute
	minPause = 100 * time.Millisecond
	maxPause = 10 * time.Second
)

// pace bounds how often processes that die are replaced. It belongs to one goroutine.
type pace struct {
	deaths int       // less than calm apart
	last   time.Time // of them
}

// death notes one.
func (p *pace) death(now time.Time) {
	if now.Sub(p.last) > calm {
		p.deaths = 0
	}
	p.deaths, p.last = p.deaths+1, now
}

// due is when the next process may be made.
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

// tending is the goroutine that sees to the spare.
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

// Tend has a spare at hand, from now on: a process in the namespace that becomes the
// keeper when that dies. Nothing but another process there can make one, because to enter
// the namespace takes a privilege that is given up. prove is called after the spare has
// become the keeper; the last call of Tend says which. It does not wait.
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

// run looks after keeper and spare until the namespace is closed.
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

// proved has the legs of the new keeper proved.
func (n *Namespace) proved(t *tending) {
	n.mu.Lock()
	prove := t.prove
	n.mu.Unlock()
	prove()
}

// see makes a spare where there is none, and tells when to look again.
func (n *Namespace) see(t *tending, keeper *client, p *pace) time.Duration {
	n.mu.Lock()
	spare := n.spare
	if spare != nil && spare.gone() {
		n.spare = nil
	}
	n.mu.Unlock()
	switch {
	case keeper.gone():
		return tendEvery // nothing can make one
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

// makeSpare has a keeper make its spare.
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
