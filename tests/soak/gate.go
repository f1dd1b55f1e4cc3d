package main

import (
	"context"
	"sync"
)

// gate lets either work run on a host, or what must not run beside any. What wants the host for itself waits for the
// work under way, and later work waits for it. Work on two hosts enters them in the order of their names.
type gate struct {
	mu     sync.Mutex // guards everything below
	shared int
	alone  bool          // wanted or held by what must run alone
	change chan struct{} // closed at the next change
}

func (g *gate) changedLocked() {
	if g.change != nil {
		close(g.change)
		g.change = nil
	}
}

// wait waits until ok returns true. ok is called with mu held and takes what it wants.
func (g *gate) wait(ctx context.Context, ok func() bool) error {
	for {
		g.mu.Lock()
		if ok() {
			g.changedLocked()
			g.mu.Unlock()
			return nil
		}
		if g.change == nil {
			g.change = make(chan struct{})
		}
		change := g.change
		g.mu.Unlock()
		select {
		case <-change:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// enter begins work; leave ends it.
func (g *gate) enter(ctx context.Context) error {
	return g.wait(ctx, func() bool {
		if !g.alone {
			g.shared++
			return true
		}
		return false
	})
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shared--
	g.changedLocked()
}

// shut keeps new work out and waits for the end of the work under way; open lets work in again.
func (g *gate) shut(ctx context.Context) error {
	err := g.wait(ctx, func() bool {
		if g.alone {
			return false
		}
		g.alone = true
		return true
	})
	if err != nil {
		return err
	}
	if err = g.wait(ctx, func() bool { return g.shared == 0 }); err != nil {
		g.open()
	}
	return err
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.alone = false
	g.changedLocked()
}
