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
	// pathKept is how long a path is cached unless an event invalidates it earlier: the
	// administrator tells a host about changes at its own port, but not about those at its
	// peers'. pathMissingKept is the same for a failed query.
	pathKept        = 10 * time.Second
	pathMissingKept = time.Second
	// pathsMost bounds the cached answers; pathsAskedMost bounds the queries in progress,
	// each of which holds a thread.
	pathsMost      = 1024
	pathsAskedMost = 16
)

// pathResolver resolves the path between two addresses of the IP network on the subnet:
// [rdmacm.Resolve].
type pathResolver func(ctx context.Context, local, remote netip.Addr) (rdmacm.Path, error)

// ibPaths caches the paths to peers through InfiniBand subnets, keyed by the addresses of
// connections. Its methods may be called from any goroutine.
//
// The addresses of a TCP connection do not name a queue pair on InfiniBand: packets follow LIDs,
// which the subnet administrator assigns and revokes, and only within a partition. A path is
// what the kernel's connection manager answers for the addresses of the connection
// (verbs/hw/rdmacm). What a peer says about itself is not trusted unless it agrees with that;
// otherwise a peer could make this host send to a third one (docs/PROTOCOL.md "Carrier proof").
//
// An administrator may be slow or silent. So a query continues after its waiters have given up,
// and later connections find its answer.
type ibPaths struct {
	resolve pathResolver
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup

	mu    sync.Mutex // guards everything below
	known map[ibEnds]*ibAnswer
	asked int // queries in progress
}

// ibEnds are the addresses of a connection.
type ibEnds struct{ local, remote netip.Addr }

// ibAnswer is a query and, once it is done, its answer.
type ibAnswer struct {
	done chan struct{} // closed when the other fields are set
	path rdmacm.Path
	err  error
	at   time.Time
}

// newIBPaths returns an empty cache. It must be closed with close.
func newIBPaths(resolve pathResolver) *ibPaths {
	p := &ibPaths{resolve: resolve, known: map[ibEnds]*ibAnswer{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// to returns the path between two addresses. It waits for the answer until ctx ends. The
// error is an ErrNoPath if there is no path, or no answer yet.
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

// ask returns the cached answer or the query in progress, or starts a query.
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

// holds reports whether the query is in progress or its answer is still valid.
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

// find queries the kernel. It locks the thread because the kernel accepts commands only from
// the thread that opened its device.
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

// forget drops the cache because the subnet has changed. Queries in progress still answer
// their waiters but are not cached.
func (p *ibPaths) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = map[ibEnds]*ibAnswer{}
}

// doubt drops the path between two addresses: the peer says that it is at the end of a
// different one.
func (p *ibPaths) doubt(local, remote netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, ibEnds{local, remote})
}

// close cancels the queries in progress and waits for them.
func (p *ibPaths) close() {
	p.mu.Lock()
	p.cancel()
	p.mu.Unlock()
	p.work.Wait()
}
