package carrier

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

const (
	// pathKept is how long a path holds unless an event ends it before: the administrator tells a host of changes at its
	// own port, and not of those at its peers'. pathMissingKept is the same of an answer without a path.
	pathKept        = 10 * time.Second
	pathMissingKept = time.Second
	// pathsMost bounds the answers that are kept, pathsAskedMost the questions under way: each holds a thread.
	pathsMost      = 1024
	pathsAskedMost = 16
)

// pathResolver asks for the path between two addresses of the IP network on the subnet: [rdmacm.Resolve].
type pathResolver func(ctx context.Context, local, remote netip.Addr) (rdmacm.Path, error)

// ibPaths are the paths to peers through InfiniBand subnets, by the addresses of connections. Its methods may be called by
// any goroutine.
//
// The addresses of a TCP connection name no queue pair there: packets follow LIDs, which the subnet administrator gives out
// and takes back, and only within a partition. A path is what the kernel's connection manager answers for the addresses of
// the connection (verbs/hw/rdmacm). What a peer says of itself is worth nothing until it agrees with that, or a host could be
// made to send to a third one (docs/PROTOCOL.md "Carrier proof").
//
// An administrator may be slow or silent. So the question goes on when those that wait for it have given up, and later
// connections find its answer.
type ibPaths struct {
	resolve pathResolver
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup

	mu    sync.Mutex // guards everything below
	known map[ibEnds]*ibAnswer
	asked int // questions under way
}

// ibEnds are the addresses of a connection.
type ibEnds struct{ local, remote netip.Addr }

// ibAnswer is what was asked, and then what the answer is.
type ibAnswer struct {
	done chan struct{} // closed when the rest is set
	path rdmacm.Path
	err  error
	at   time.Time
}

// newIBPaths returns an empty set of paths. close ends it.
func newIBPaths(resolve pathResolver) *ibPaths {
	p := &ibPaths{resolve: resolve, known: map[ibEnds]*ibAnswer{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// to returns the path between two addresses, for which it waits until ctx ends. It is ErrNoPath that there is none, or
// none yet.
func (p *ibPaths) to(ctx context.Context, local, remote netip.Addr) (rdmacm.Path, error) {
	a, err := p.ask(ibEnds{local, remote})
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
func (p *ibPaths) ask(between ibEnds) (*ibAnswer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.known[between]
	switch {
	case a != nil && a.holds(time.Now()):
		return a, nil
	case p.ctx.Err() != nil:
		return nil, fmt.Errorf("%v: closed: %w", between.remote, ErrNoPath)
	case p.asked >= pathsAskedMost:
		return nil, fmt.Errorf("%v: %d paths are asked for: %w", between.remote, pathsAskedMost, ErrNoPath)
	case len(p.known) >= pathsMost:
		p.known = map[ibEnds]*ibAnswer{}
	}
	a = &ibAnswer{done: make(chan struct{})}
	p.known[between] = a
	p.asked++
	p.work.Go(func() { p.find(between, a) })
	return a, nil
}

// holds reports whether an answer is under way, or still good.
func (a *ibAnswer) holds(now time.Time) bool {
	select {
	case <-a.done:
	default:
		return true
	}
	kept := pathKept
	if a.err != nil {
		kept = pathMissingKept
	}
	return now.Sub(a.at) < kept
}

// find asks the kernel, which takes commands only from the thread that has opened its device.
func (p *ibPaths) find(between ibEnds, a *ibAnswer) {
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

// forget drops what is known: the subnet has changed. Questions under way are answered to those that wait, and not kept.
func (p *ibPaths) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = map[ibEnds]*ibAnswer{}
}

// doubt drops the path between two addresses: the peer says that it is at the end of another one.
func (p *ibPaths) doubt(local, remote netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, ibEnds{local, remote})
}

// close ends what is under way, and waits for that.
func (p *ibPaths) close() {
	p.mu.Lock()
	p.cancel()
	p.mu.Unlock()
	p.work.Wait()
}
