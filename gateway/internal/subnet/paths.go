package subnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

const (
	// keptFound is how long a path holds unless an event ends it before: the administrator tells a host of changes at its
	// own port, and not of those at its peers'. keptMissing is the same of an answer without a path.
	keptFound   = 10 * time.Second
	keptMissing = time.Second
	// pathsMost bounds the answers that are kept, askedMost the questions under way: each holds a thread.
	pathsMost = 1024
	askedMost = 16
)

// ErrNoPath means that no path to the peer is known, or not in time.
var ErrNoPath = errors.New("no path through the InfiniBand subnet")

// Resolver asks for the path between two addresses of the IP network on the subnet: [rdmacm.Resolve].
type Resolver func(ctx context.Context, local, remote netip.Addr) (rdmacm.Path, error)

// Paths are the paths to peers, by the addresses of connections. Its methods may be called by any goroutine.
type Paths struct {
	resolve Resolver
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup

	mu    sync.Mutex // guards everything below
	known map[ends]*answer
	asked int // questions under way
}

// ends are the addresses of a connection.
type ends struct{ local, remote netip.Addr }

// answer is what was asked, and then what the answer is.
type answer struct {
	done chan struct{} // closed when the rest is set
	path rdmacm.Path
	err  error
	at   time.Time
}

// New returns an empty set of paths. Close ends it.
func New(resolve Resolver) *Paths {
	p := &Paths{resolve: resolve, known: map[ends]*answer{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// To returns the path between two addresses, for which it waits until ctx ends. It is ErrNoPath that there is none, or
// none yet.
func (p *Paths) To(ctx context.Context, local, remote netip.Addr) (rdmacm.Path, error) {
	a, err := p.ask(ends{local, remote})
	if err != nil {
		return rdmacm.Path{}, err
	}
	select {
	case <-a.done:
		return a.path, a.err
	case <-ctx.Done():
	}
	return rdmacm.Path{}, fmt.Errorf("path to %v: no answer of the subnet administrator yet: %w", remote, ErrNoPath)
}

// ask returns the answer that is there or under way, or asks.
func (p *Paths) ask(between ends) (*answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.known[between]
	switch {
	case a != nil && a.holds(time.Now()):
		return a, nil
	case p.ctx.Err() != nil:
		return nil, fmt.Errorf("%v: closed: %w", between.remote, ErrNoPath)
	case p.asked >= askedMost:
		return nil, fmt.Errorf("%v: %d paths are asked for: %w", between.remote, askedMost, ErrNoPath)
	case len(p.known) >= pathsMost:
		p.known = map[ends]*answer{}
	}
	a = &answer{done: make(chan struct{})}
	p.known[between] = a
	p.asked++
	p.work.Go(func() { p.find(between, a) })
	return a, nil
}

// holds reports whether an answer is under way, or still good.
func (a *answer) holds(now time.Time) bool {
	select {
	case <-a.done:
	default:
		return true
	}
	kept := keptFound
	if a.err != nil {
		kept = keptMissing
	}
	return now.Sub(a.at) < kept
}

// find asks the kernel, which takes commands only from the thread that has opened its device.
func (p *Paths) find(between ends, a *answer) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	path, err := p.resolve(p.ctx, between.local, between.remote)
	if err != nil {
		err = fmt.Errorf("%w: %w", err, ErrNoPath)
	}
	a.path, a.err, a.at = path, err, time.Now()
	close(a.done)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked--
}

// Forget drops what is known: the subnet has changed. Questions under way are answered to those that wait, and not kept.
func (p *Paths) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = map[ends]*answer{}
}

// Doubt drops the path between two addresses: the peer says that it is at the end of another one.
func (p *Paths) Doubt(local, remote netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, ends{local, remote})
}

// Close ends what is under way, and waits for that.
func (p *Paths) Close() {
	p.mu.Lock()
	p.cancel()
	p.mu.Unlock()
	p.work.Wait()
}
