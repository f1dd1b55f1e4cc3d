package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/smcgw/smcgw/lab/apps"
)

func text(v any) string { return fmt.Sprint(v) }

// drawTransfer draws a stream each way, with a half-close.
func drawTransfer(s *soak, rng *rand.Rand, p pairing) (func(context.Context) result, string) {
	up, down := size(rng, s.largest), size(rng, s.largest)
	args := []string{
		"transfer", "-to", p.to4or6(transferPort), "-limit", text(limit), "-seed", text(rng.Uint64()),
		"-up", text(up), "-down", text(down),
	}
	if rng.IntN(2) == 0 {
		args = append(args, "-late")
	}
	if rng.IntN(4) == 0 {
		args = append(args, "-rst") // after the last byte
	}
	if rng.IntN(4) == 0 {
		args = append(args, "-write", text(max(size(rng, 1<<20), up/100_000, down/100_000)))
	}
	return app(p, good, args...), strings.Join(args[3:], " ")
}

// drawChurn draws many small streams, one connection each.
func drawChurn(_ *soak, rng *rand.Rand, p pairing) (func(context.Context) result, string) {
	args := []string{
		"churn", "-to", p.to4or6(transferPort), "-limit", text(limit), "-seed", text(rng.Uint64()),
		"-count", text(10 + rng.IntN(150)), "-parallel", text(1 + rng.IntN(8)), "-size", text(size(rng, 256<<10)),
		"-gap", text(time.Duration(rng.IntN(3)) * time.Millisecond),
	}
	return app(p, good, args...), strings.Join(args[3:], " ")
}

// drawPing draws requests and answers over one connection, with pauses, sometimes after a banner of the server.
func drawPing(_ *soak, rng *rand.Rand, p pairing) (func(context.Context) result, string) {
	port := uint16(echoPort)
	args := []string{"ping", "-limit", text(limit), "-seed", text(rng.Uint64())}
	if rng.IntN(3) == 0 {
		port = firstPort
		args = append(args, "-banner")
	}
	bytes := size(rng, 128<<10)
	if bytes < 2000 && rng.IntN(3) == 0 {
		args = append(args, "-onebyte")
	}
	args = append(args, "-to", p.to4or6(port), "-size", text(bytes), "-count", text(5+rng.IntN(300)),
		"-gap", text(time.Duration(rng.IntN(20))*time.Millisecond))
	return one(app(p, good, args...)), strings.Join(args[1:], " ")
}

// drawShort draws connections for one request each.
func drawShort(_ *soak, rng *rand.Rand, p pairing) (func(context.Context) result, string) {
	args := []string{
		"short", "-to", p.to4or6(echoPort), "-limit", text(limit), "-seed", text(rng.Uint64()),
		"-count", text(20 + rng.IntN(300)), "-parallel", text(1 + rng.IntN(10)), "-size", text(size(rng, 16<<10)),
	}
	return app(p, good, args...), strings.Join(args[3:], " ")
}

// drawReset draws a connection that the server resets after one byte.
func drawReset(_ *soak, rng *rand.Rand, p pairing) (func(context.Context) result, string) {
	args := []string{"ping", "-to", p.to4or6(rstPort), "-limit", text(limit), "-size", text(1 + rng.IntN(1000))}
	return one(app(p, ends("ECONNRESET", "EPIPE"), args...)), strings.Join(args[3:], " ")
}

// drawUnread draws a transfer to a server that never reads; the client gives up and resets.
func drawUnread(_ *soak, rng *rand.Rand, p pairing) (func(context.Context) result, string) {
	args := []string{
		"transfer", "-to", p.to4or6(holdPort), "-up", text(64 << 20),
		"-limit", text(time.Second + time.Duration(rng.Int64N(int64(4*time.Second)))),
	}
	return one(app(p, ends("TIMEOUT"), args...)), strings.Join(args[3:], " ")
}

// drawDatagrams draws datagrams and their answers. Some may be lost; none may be wrong.
func drawDatagrams(_ *soak, rng *rand.Rand, p pairing) (func(context.Context) result, string) {
	sizes := make([]string, 1+rng.IntN(4))
	for i := range sizes {
		sizes[i] = text(size(rng, 8<<10))
	}
	args := []string{
		"ping-udp", "-to", p.to4or6(udpPort), "-patient", "-limit", "500ms", "-seed", text(rng.Uint64()),
		"-size", strings.Join(sizes, ","), "-for", text(time.Duration(1+rng.IntN(4)) * time.Second),
		"-gap", text(time.Duration(1+rng.IntN(20)) * time.Millisecond),
	}
	if rng.IntN(2) == 0 {
		args = append(args, "-connected")
	}
	return one(app(p, good, args...)), strings.Join(args[3:], " ")
}

// drawWeb draws an ordinary HTTP client and server.
func drawWeb(s *soak, rng *rand.Rand, p pairing) (func(context.Context) result, string) {
	bytes := size(rng, s.largest)
	count := 1 + rng.IntN(200)
	count = max(1, min(count, int(s.largest/bytes)))
	args := []string{
		"fetch", "-to", p.to4or6(webPort), "-limit", text(limit), "-seed", text(1 + rng.Uint64N(1<<32)),
		"-size", text(bytes), "-count", text(count),
	}
	return one(app(p, good, args...)), strings.Join(args[3:], " ")
}

// drawHold draws connections that are mostly idle, and end one way or another.
func drawHold(_ *soak, rng *rand.Rand, p pairing) (func(context.Context) result, string) {
	h := holding{
		pairing: p, count: 1 + rng.IntN(40), size: size(rng, 4<<10), rounds: 1 + rng.IntN(3),
		idle: time.Duration(rng.Int64N(int64(3 * time.Second))), end: []string{"fin", "rst", "close", ""}[rng.IntN(4)],
	}
	return h.run, fmt.Sprintf("%d connections, %d times idle for %v, %d bytes, end %q", h.count, h.rounds, h.idle, h.size, h.end)
}

// holding is one run of the app hold.
type holding struct {
	pairing
	count  int
	size   int64
	rounds int
	idle   time.Duration
	end    string
}

func (h holding) run(ctx context.Context) (r result) {
	r.flows = int64(h.count)
	proc, err := h.from.StartApp("hold", "-to", h.to4or6(echoPort), "-count", text(h.count), "-size", text(h.size),
		"-patience", text(limit))
	if err != nil {
		return result{err: err}
	}
	defer func() {
		_ = proc.CloseInput()
		select {
		case <-proc.Done():
		case <-ctx.Done():
			_ = proc.Kill()
		}
	}()
	steps := []string{"connect"}
	for range h.rounds {
		steps = append(steps, "ping")
	}
	if h.end != "" {
		steps = append(steps, h.end)
	}
	for i, step := range steps {
		if i > 0 {
			time.Sleep(h.idle)
		}
		e, err := proc.Ask(ctx, step)
		if err != nil {
			r.err = fmt.Errorf("step %d, %s: %w", i, step, err)
			return r
		}
		if e.Failed > 0 {
			r.err = fmt.Errorf("%w: step %d, %s: %d of %d: %s%s", errProgram, i, step, e.Failed, h.count, e.Error, unexpected(proc.Events(), h.end, &r))
			return r
		}
		if step == "ping" {
			r.bytes += 2 * int64(h.count) * h.size
		}
	}
	if h.end == "fin" {
		_, r.err = proc.WaitEvents(ctx, h.count, func(e apps.Event) bool { return e.Event == "ended" })
	}
	if r.err == nil {
		if bad := unexpected(proc.Events(), h.end, &r); bad != "" {
			r.err = fmt.Errorf("%w:%s", errProgram, bad)
		}
	}
	return r
}

// unexpected lists connections that ended with an error, as only those may that the client itself has closed or reset.
func unexpected(events []apps.Event, end string, r *result) string {
	var b strings.Builder
	at := map[int]apps.Event{}
	for _, e := range events {
		switch e.Event {
		case "connected":
			at[e.ID] = e
		case "ended":
			if e.Error != "" && end != "rst" && end != "close" {
				c := at[e.ID]
				r.local, r.remote = c.Local, c.Remote
				fmt.Fprintf(&b, " %s > %s ended after %v: %s;", c.Local, c.Remote, time.Duration(e.Micros)*time.Microsecond, e.Error)
			}
		}
	}
	return b.String()
}
