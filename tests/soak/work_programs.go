package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
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

// drawRedisBenchmark draws redis' load generator.
func drawRedisBenchmark(_ *soak, rng *rand.Rand, p pairing) (func(context.Context) result, string) {
	requests, clients, bytes := 500+rng.IntN(3000), 1+rng.IntN(30), size(rng, 8<<10)
	args := []string{"-t", "set,get", "-n", text(requests), "-c", text(clients), "-d", text(bytes), "-P", text(1 + rng.IntN(8))}
	return func(ctx context.Context) result {
		_, err := p.from.RedisBenchmark(ctx, p.to.addr(p.v6, redisPort), args...)
		return result{flows: 2 * int64(clients), bytes: 2 * int64(requests) * bytes, err: err}
	}, strings.Join(args, " ")
}

// drawRedis draws a client that stores values in redis and checks that they stay the same.
func drawRedis(_ *soak, rng *rand.Rand, p pairing) (func(context.Context) result, string) {
	seed, keys := rng.Uint64(), 1+rng.IntN(40)
	most := size(rng, 512<<10)
	return func(ctx context.Context) result { return redisValues(ctx, p, seed, keys, most) },
		fmt.Sprintf("%d values of at most %d bytes, seed %d", keys, most, seed)
}

func redisValues(ctx context.Context, p pairing, seed uint64, keys int, most int64) (r result) {
	r.flows = 1
	conn, err := p.from.Dial(ctx, "tcp", p.to4or6(redisPort))
	if err != nil {
		r.err = err
		return r
	}
	defer conn.Close()
	r.local, r.remote = conn.LocalAddr().String(), conn.RemoteAddr().String()
	_ = conn.SetDeadline(time.Now().Add(limit))
	rng := rand.New(rand.NewPCG(seed, 0))
	values := make([][]byte, keys)
	in := bufio.NewReaderSize(conn, 64<<10)
	name := func(i int) string { return fmt.Sprintf("soak:%s:%d:%d", p.from.Name, seed, i) }
	for i := range values {
		values[i] = make([]byte, size(rng, most))
		for j := range values[i] {
			values[i][j] = byte(rng.Uint32())
		}
		r.bytes += int64(len(values[i]))
		if err := redisCall(conn, in, nil, "SET", name(i), string(values[i]), "EX", "300"); err != nil {
			r.err = fmt.Errorf("set %d of %d: %w", i, keys, err)
			return r
		}
	}
	for _, i := range rng.Perm(keys) {
		if err := redisCall(conn, in, values[i], "GET", name(i)); err != nil {
			r.err = fmt.Errorf("get %d of %d: %w", i, keys, err)
			return r
		}
		r.bytes += int64(len(values[i]))
	}
	return r
}

// redisCall sends a command and checks its answer, which must be +OK or the wanted value.
func redisCall(conn net.Conn, in *bufio.Reader, want []byte, words ...string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	if _, err := io.WriteString(conn, b.String()); err != nil {
		return err
	}
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	line = strings.TrimRight(line, "\r\n")
	if want == nil {
		if line != "+OK" {
			return fmt.Errorf("%w: answer %q", errProgram, line)
		}
		return nil
	}
	n, err := strconv.Atoi(strings.TrimPrefix(line, "$"))
	if err != nil || n != len(want) {
		return fmt.Errorf("%w: answer %q instead of %d bytes", errProgram, line, len(want))
	}
	got := make([]byte, n+2)
	if _, err := io.ReadFull(in, got); err != nil {
		return err
	}
	if string(got[:n]) != string(want) {
		return errors.New("wrong bytes in a value")
	}
	return nil
}
