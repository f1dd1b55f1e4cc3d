package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/verbs"
)

// longestSilence is the longest time for which all packets are lost. The soft device gives up a queue pair after 3.2
// seconds, and its flows go on over the relay.
const longestSilence = 6 * time.Second

// ofNetwork are the faults of the network: for a while, packets that one host or all hosts send are treated in some
// way. The kernel's TCP survives all of them, and so must everything else.
func (s *soak) ofNetwork() []mischief {
	return []mischief{
		{"loss", s.drawBox(5*time.Second, func(rng *rand.Rand) testnet.Box { return testnet.Box{Loss: 1 + rng.IntN(20)} })},
		{"duplication", s.drawBox(5*time.Second, func(rng *rand.Rand) testnet.Box { return testnet.Box{Dup: 1 + rng.IntN(50)} })},
		{"reordering", s.drawBox(5*time.Second, func(rng *rand.Rand) testnet.Box {
			return testnet.Box{Reorder: 1 + rng.IntN(50), ReorderBy: span(rng, time.Millisecond, 5*time.Millisecond)}
		})},
		{"delay", s.drawBox(4*time.Second, func(rng *rand.Rand) testnet.Box {
			return testnet.Box{Delay: span(rng, time.Millisecond, 20*time.Millisecond), Jitter: span(rng, 0, 5*time.Millisecond)}
		})},
		{"bad RoCE", s.drawBox(5*time.Second, func(rng *rand.Rand) testnet.Box {
			return testnet.Box{UDP: testnet.Datagrams{
				Port: verbs.RoCEUDPPort, Loss: 1 + rng.IntN(30), Dup: rng.IntN(20), Reorder: rng.IntN(50), Seed: rng.Uint64(),
			}}
		})},
		{"no RoCE", s.drawBox(longestSilence, func(*rand.Rand) testnet.Box {
			return testnet.Box{UDP: testnet.Datagrams{Port: verbs.RoCEUDPPort, Loss: 1000}}
		})},
		{"silence", s.drawBox(longestSilence, func(*rand.Rand) testnet.Box { return testnet.Box{Blackhole: true} })},
		{"cable", s.drawCable},
	}
}

// drawCable draws that a host's cable is pulled and put back.
func (s *soak) drawCable(rng *rand.Rand) (func(context.Context), string) {
	at, d := s.any(rng), span(rng, 50*time.Millisecond, 2*time.Second)
	return func(ctx context.Context) {
		s.calm.Lock()
		defer s.calm.Unlock()
		began := time.Now()
		s.broke(began, "pull the cable of "+at.Name, at.SetLink(false))
		_ = testnet.Sleep(ctx, d)
		s.broke(began, "put the cable of "+at.Name+" back", at.SetLink(true))
	}, fmt.Sprintf("%s, for %v", at.Name, d)
}

// drawBox draws a box for one host or for all of them.
func (s *soak) drawBox(most time.Duration, box func(*rand.Rand) testnet.Box) func(*rand.Rand) (func(context.Context), string) {
	return func(rng *rand.Rand) (func(context.Context), string) {
		b, d := box(rng), span(rng, 300*time.Millisecond, most)
		set, where := s.net.SetBox, "everywhere"
		if rng.IntN(2) == 0 {
			at := s.any(rng)
			set, where = at.SetBox, "what "+at.Name+" sends"
		}
		return func(ctx context.Context) {
			s.calm.Lock()
			defer s.calm.Unlock()
			began := time.Now()
			s.broke(began, "set box", set(b))
			_ = testnet.Sleep(ctx, d)
			s.broke(began, "clear box", s.net.SetBox(testnet.Box{}))
		}, fmt.Sprintf("%s, %v, %s", where, d, describe(b))
	}
}

// describe returns what a box does.
func describe(b testnet.Box) string {
	switch {
	case b.Loss > 0:
		return fmt.Sprintf("%d‰", b.Loss)
	case b.Dup > 0:
		return fmt.Sprintf("%d‰", b.Dup)
	case b.Reorder > 0:
		return fmt.Sprintf("%d‰ by %v", b.Reorder, b.ReorderBy)
	case b.Delay > 0:
		return fmt.Sprintf("%v + %v", b.Delay, b.Jitter)
	case b.UDP.Port != 0:
		return fmt.Sprintf("port %d: loss %d‰, duplication %d‰, reordering %d‰", b.UDP.Port, b.UDP.Loss, b.UDP.Dup, b.UDP.Reorder)
	default:
		return "all packets lost"
	}
}
