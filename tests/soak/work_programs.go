package main

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"
)

// drawIperf draws iperf3, one way or the other. It reports to have received less than was sent, by what is in flight
// when the sender is done.
func drawIperf(s *soak, rng *rand.Rand, p pairing) (func(context.Context) result, string) {
	args := []string{"-n", text(max(64<<10, size(rng, s.largest))), "-P", text(1 + rng.IntN(3))}
	if rng.IntN(2) == 0 {
		args = append(args, "-R")
	}
	return func(ctx context.Context) result {
		p.to.iperf.Lock()
		defer p.to.iperf.Unlock()
		// A server of its own: one that serves many does not listen in between.
		server, err := p.to.Start("iperf3", "-s", "-1", "-p", text(iperfPort), "--forceflush")
		if err != nil {
			return result{err: err}
		}
		defer func() { _ = server.Stop(time.Second) }()
		if err := server.WaitOutput(ctx, "Server listening"); err != nil {
			return result{err: err}
		}
		r, err := p.from.IPerf3(ctx, p.to.addr(p.v6, iperfPort), args...)
		return result{flows: 2, bytes: r.ReceivedBytes, err: err}
	}, strings.Join(args, " ")
}

// drawRedis draws redis' load generator.
func drawRedis(_ *soak, rng *rand.Rand, p pairing) (func(context.Context) result, string) {
	requests, clients, bytes := 500+rng.IntN(3000), 1+rng.IntN(30), size(rng, 8<<10)
	args := []string{"-t", "set,get", "-n", text(requests), "-c", text(clients), "-d", text(bytes), "-P", text(1 + rng.IntN(8))}
	return func(ctx context.Context) result {
		_, err := p.from.RedisBenchmark(ctx, p.to.addr(p.v6, redisPort), args...)
		return result{flows: 2 * int64(clients), bytes: 2 * int64(requests) * bytes, err: err}
	}, strings.Join(args, " ")
}
