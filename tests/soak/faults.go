package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/smcgw/smcgw/lab/testnet"
)

// mischief is one kind of fault. draw takes everything random from rng and returns the fault and its description.
type mischief struct {
	name string
	draw func(rng *rand.Rand) (do func(ctx context.Context), what string)
}

// lanes are the sequences of faults that run side by side: faults of packets, and faults of gateways.
func (s *soak) lanes() []func(ctx context.Context) {
	return []func(ctx context.Context){
		func(ctx context.Context) { s.lane(ctx, "network", s.ofNetwork()) },
		func(ctx context.Context) { s.lane(ctx, "gateway", s.ofGateways()) },
	}
}

// lane causes one fault after another until ctx ends. Every kind comes once before any comes again.
func (s *soak) lane(ctx context.Context, name string, kinds []mischief) {
	rng := s.rand(name)
	for {
		for _, i := range rng.Perm(len(kinds)) {
			pause := 200*time.Millisecond + time.Duration(rng.Int64N(int64(1500*time.Millisecond)))
			do, what := kinds[i].draw(rng)
			if testnet.Sleep(ctx, pause) != nil {
				return
			}
			end := s.ledger.begin(fmt.Sprintf("%s: %s", kinds[i].name, what))
			do(ctx)
			end()
		}
	}
}

// span draws a duration.
func span(rng *rand.Rand, from, to time.Duration) time.Duration {
	return (from + time.Duration(rng.Int64N(int64(to-from)))).Round(time.Millisecond)
}

// any draws one of the hosts with gateways.
func (s *soak) any(rng *rand.Rand) *site { return s.capable[rng.IntN(len(s.capable))] }

// broke reports a fault that could not be caused.
func (s *soak) broke(began time.Time, what string, err error) {
	if err != nil && s.life.Err() == nil {
		s.ledger.fail(began, what, err.Error())
	}
}
