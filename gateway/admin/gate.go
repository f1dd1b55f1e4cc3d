package admin

import (
	"context"
	"time"
)

// gate bounds the documents in progress: those being made or not yet read by their clients.
type gate struct {
	all, others chan struct{}
	patience    time.Duration
}

// newGate allows n documents in progress, and at most others of them for unprivileged
// clients. Further ones wait for up to patience.
func newGate(n, others int, patience time.Duration) *gate {
	return &gate{all: make(chan struct{}, n), others: make(chan struct{}, others), patience: patience}
}

// Enter waits for a place, which leave frees. ok is false if none became free in time.
func (g *gate) Enter(ctx context.Context, privileged bool) (leave func(), ok bool) {
	ctx, cancel := context.WithTimeout(ctx, g.patience)
	defer cancel()
	places := []chan struct{}{g.others, g.all}
	if privileged {
		places = places[1:]
	}
	for i, p := range places {
		if !take(ctx, p) {
			free(places[:i])
			return nil, false
		}
	}
	return func() { free(places) }, true
}

// take takes a place, waiting for one if needed.
func take(ctx context.Context, p chan struct{}) bool {
	select {
	case p <- struct{}{}:
		return true
	default:
	}
	select {
	case p <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// free frees one place of each.
func free(places []chan struct{}) {
	for _, p := range places {
		<-p
	}
}
