package admin

import (
	"context"
	"time"
)

// gate bounds the documents that are under way: made, and not read by their client yet.
type gate struct {
	all, others chan struct{}
	patience    time.Duration
}

// newGate lets n documents under way, others of them for clients that are not privileged.
// Further ones wait for as long as patience.
func newGate(n, others int, patience time.Duration) *gate {
	return &gate{all: make(chan struct{}, n), others: make(chan struct{}, others), patience: patience}
}

// Enter waits for a place, which leave frees; false: there was none in time.
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

// take waits for a place, unless there is one.
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

// free frees a place of each.
func free(places []chan struct{}) {
	for _, p := range places {
		<-p
	}
}
