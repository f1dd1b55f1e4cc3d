package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
)

const (
	// limit is how long a client's connection may take from its first SYN to its end; a program that takes longer has
	// failed.
	limit = 2 * time.Minute
	// patience bounds every wait for a program or a gateway.
	patience = limit + 30*time.Second
)

// errProgram says that a program has failed.
var errProgram = errors.New("the program failed")

// result is what one program has done.
type result struct {
	flows, bytes  int64
	local, remote string // of the connection that failed, if known
	err           error
}

// work is what one program does between two hosts. draw takes everything random from rng and returns the work and its
// description.
type work struct {
	name   string
	weight int
	draw   func(s *soak, rng *rand.Rand, p pairing) (do func(ctx context.Context) result, what string)
}

// pairing is two hosts and a family.
type pairing struct {
	from, to *site
	v6       bool
}

func (p pairing) to4or6(port uint16) string { return p.to.addr(p.v6, port).String() }

// works returns all kinds of work.
func works() []work {
	return []work{
		{"transfer", 10, drawTransfer},
		{"churn", 8, drawChurn},
		{"ping", 4, drawPing},
		{"short", 4, drawShort},
		{"hold", 6, drawHold},
		{"rst", 2, drawReset},
		{"unread", 2, drawUnread},
		{"datagrams", 4, drawDatagrams},
		{"web", 5, drawWeb},
		{"redis", 4, drawRedis},
		{"iperf3", 3, drawIperf},
	}
}

// size draws a number of bytes up to most, uniformly below a random power of two.
func size(rng *rand.Rand, most int64) int64 {
	bits := 0
	for int64(1)<<bits < most {
		bits++
	}
	hi := int64(1) << rng.IntN(bits+1)
	return min(1+rng.Int64N(hi), most)
}

// worker runs one program after the other until ctx ends.
func (s *soak) worker(ctx context.Context, number int, warm bool) {
	name := fmt.Sprintf("worker %d", number)
	if warm {
		name += " warm"
	}
	rng := s.rand(name)
	all := works()
	sum := 0
	for _, w := range all {
		sum += w.weight
	}
	for ctx.Err() == nil {
		n := rng.IntN(sum)
		i := 0
		for ; n >= all[i].weight; i++ {
			n -= all[i].weight
		}
		p := s.pair(rng)
		do, what := all[i].draw(s, rng, p)
		pause := time.Duration(rng.Int64N(int64(100 * time.Millisecond)))
		s.perform(ctx, p, fmt.Sprintf("%s %s to %s: %s", all[i].name, p.from.Name, p.to.Name, what), do)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// pair draws two hosts; in one of eight pairings one is the plain host.
func (s *soak) pair(rng *rand.Rand) pairing {
	p := pairing{v6: rng.IntN(2) == 0}
	perm := rng.Perm(len(s.capable))
	p.from, p.to = s.capable[perm[0]], s.capable[perm[1]]
	switch rng.IntN(16) {
	case 0:
		p.from = s.plain
	case 1:
		p.to = s.plain
	}
	return p
}

// perform runs one program. What has begun runs to its end, even when the soak is over.
func (s *soak) perform(ctx context.Context, p pairing, what string, do func(context.Context) result) {
	if p.from.capable() && p.to.capable() {
		first, second := p.from, p.to
		if first.Name > second.Name {
			first, second = second, first
		}
		for _, at := range []*site{first, second} {
			at.busy.RLock()
			defer at.busy.RUnlock()
		}
	}
	if ctx.Err() != nil {
		return
	}
	s.running.Add(1)
	defer s.running.Add(-1)
	began := time.Now()
	ctx, cancel := context.WithTimeout(s.life, patience)
	defer cancel()
	r := do(ctx)
	s.ledger.add(r.flows, r.bytes)
	if r.err == nil || s.life.Err() != nil {
		return
	}
	s.ledger.fail(began, what, r.err.Error()+"\n"+s.seen(p, r))
}

// seen returns what the gateways report of a connection.
func (s *soak) seen(p pairing, r result) string {
	if r.local == "" {
		return ""
	}
	var b strings.Builder
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, at := range []*site{p.from, p.to} {
		if !at.capable() {
			continue
		}
		for _, q := range []report.ConnQuery{{All: true}, {Closed: true}} {
			list, err := at.asking().Conns(ctx, q)
			if err != nil {
				fmt.Fprintf(&b, "%s: %v\n", at.Name, err)
				break
			}
			for i := range list.Conns {
				c := &list.Conns[i]
				here, there := c.Local.String(), c.Remote.String()
				if here == r.local && there == r.remote || here == r.remote && there == r.local {
					fmt.Fprintf(&b, "%s: %s\n", at.Name, line(c))
				}
			}
		}
	}
	return b.String()
}

// line describes a connection.
func line(c *report.ConnInfo) string {
	return fmt.Sprintf("#%d %s > %s %s %s carrier=%s reason=%s decided_by=%s tx=%d rx=%d age=%.1fs end=%s",
		c.ID, c.Local, c.Remote, c.Side, c.State, c.Carrier, c.Reason, c.DecidedBy, c.TxBytes, c.RxBytes, c.AgeSeconds, c.End)
}

// app runs a client app and lets accept judge its result.
func app(p pairing, accept func(apps.Event) error, args ...string) func(context.Context) result {
	return func(ctx context.Context) result {
		e, err := p.from.RunApp(ctx, args...)
		r := result{flows: int64(max(1, e.OK+e.Failed)), bytes: e.Sent + e.Received, local: e.Local, remote: e.Remote}
		if r.err = err; err == nil {
			r.err = accept(e)
		}
		return r
	}
}

// good accepts an app that has done what it should.
func good(e apps.Event) error {
	if e.Failed == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d of %d: %s %v (%s > %s)", errProgram, e.Failed, e.Failed+e.OK, e.Error, e.Errnos, e.Local, e.Remote)
}

// one counts one flow, for an app that makes one connection, whatever it counts.
func one(do func(context.Context) result) func(context.Context) result {
	return func(ctx context.Context) result {
		r := do(ctx)
		r.flows = 1
		return r
	}
}

// ends accepts an app that fails with one of these errors, as its work intends.
func ends(errnos ...string) func(apps.Event) error {
	return func(e apps.Event) error {
		for _, name := range errnos {
			if e.Failed == 1 && e.Errno == name {
				return nil
			}
		}
		return fmt.Errorf("%w: ended with %q %s instead of %v (%s > %s)", errProgram, e.Errno, e.Error, errnos, e.Local, e.Remote)
	}
}
