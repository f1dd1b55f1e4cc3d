package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/lab/testnet"
)

// options configure a soak.
type options struct {
	out        io.Writer
	length     time.Duration // of the load
	seed       uint64
	executable string // the gateway; empty: build it
	dir        string // for configurations, sockets and logs; the caller removes it
}

// soak is one soak under way.
type soak struct {
	options
	ledger *ledger
	life   context.Context // ends when the soak is interrupted

	net     *testnet.Network
	capable []*site // with gateways
	plain   *site
	running atomic.Int64
	largest int64 // bytes of one direction of one flow

	calm sync.Mutex // held while the network does something to packets
}

// run builds everything, soaks, and takes everything down, whatever happens. An error means that the soak could not
// be done or was interrupted; what went wrong with the gateways is in the totals.
func run(ctx context.Context, o options) (_ totals, err error) {
	s := &soak{options: o, ledger: &ledger{out: o.out, start: time.Now()}}
	var end context.CancelCauseFunc
	s.life, end = context.WithCancelCause(ctx)
	defer end(nil)
	s.largest = min(max(4<<20, int64(o.length/time.Second)<<20), 256<<20)
	s.ledger.say("soak of %v, seed %d; `make soak SOAK=%v SEED=%d` repeats it", o.length, o.seed, o.length, o.seed)
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.build(); err != nil {
		return s.ledger.sum(), err
	}
	defer s.report()()
	err = s.phases()
	if err == nil {
		err = context.Cause(ctx)
	}
	s.each(s.goodbye)
	return s.ledger.sum(), err
}

// rand returns the random generator of one part of the soak.
func (s *soak) rand(name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return rand.New(rand.NewPCG(s.seed, h.Sum64()))
}

// build makes the hosts and starts servers and gateways.
func (s *soak) build() (err error) {
	if s.executable == "" {
		if s.executable, err = build(s.life, s.dir); err != nil {
			return err
		}
	}
	if _, err := os.Stat(s.executable); err != nil {
		return fmt.Errorf("%w: %w", errNoBinary, err)
	}
	if s.net, err = testnet.New(testnet.Config{Hosts: []string{"a1", "a2", "b1", "p"}}); err != nil {
		return fmt.Errorf("make hosts: %w", err)
	}
	s.capable = []*site{
		{Host: s.net.Host("a1"), carriers: "shm, soft", shmDir: "a"},
		{Host: s.net.Host("a2"), carriers: "shm, soft", shmDir: "a"},
		{Host: s.net.Host("b1"), carriers: "soft", shmDir: "b"},
	}
	s.plain = &site{Host: s.net.Host("p")}
	for _, at := range append(s.capable[:3:3], s.plain) {
		at.dir = s.dir
		if err := at.serve(s.life); err != nil {
			return err
		}
	}
	for _, at := range s.capable {
		if at.links, err = at.Links(); err != nil {
			return err
		}
		if at.rules, err = at.Rules(); err != nil {
			return err
		}
		if err := at.up(s.life, s.executable, false); err != nil {
			return err
		}
	}
	s.ledger.say("a1, a2 (shm), b1 (soft) run gateways, p does not")
	return nil
}

// close removes the hosts with everything on them.
func (s *soak) close() error {
	for _, at := range s.capable {
		at.writeLog()
	}
	if s.net == nil {
		return nil
	}
	return s.net.Close()
}

// each runs do for every gateway in parallel.
func (s *soak) each(do func(*site)) {
	var all sync.WaitGroup
	for _, at := range s.capable {
		all.Go(func() { do(at) })
	}
	all.Wait()
}

// phases runs the phases of the soak.
func (s *soak) phases() error {
	warm := min(max(s.length/8, 3*time.Second), 30*time.Second)
	s.ledger.say("warm-up, %v", warm)
	s.load(warm, true)
	before := s.idle()
	s.ledger.say("load and faults, %v", s.length-warm)
	faults, stop := context.WithCancel(s.life)
	var lanes sync.WaitGroup
	for _, lane := range s.lanes() {
		lanes.Go(func() { lane(faults) })
	}
	s.load(s.length-warm, false)
	stop()
	lanes.Wait()
	if s.life.Err() != nil {
		return context.Cause(s.life)
	}
	after := s.idle()
	s.compare(before, after)
	return nil
}

// workers is how many programs run at a time.
const workers = 8

// load runs the workers for a time, and then until what they have begun has ended.
func (s *soak) load(d time.Duration, warm bool) {
	ctx, cancel := context.WithTimeout(s.life, d)
	defer cancel()
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() { s.worker(ctx, i, warm) })
	}
	all.Wait()
}

// report prints a line of progress every ten seconds until stop is called.
func (s *soak) report() (stop func()) {
	ended := make(chan struct{})
	var joined sync.WaitGroup
	joined.Go(func() {
		tick := time.NewTicker(10 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
			}
			s.count()
			s.ledger.say("%v running=%d faults now: %s", s.ledger.sum(), s.running.Load(), s.ledger.under())
		}
	})
	return func() {
		close(ended)
		joined.Wait()
	}
}
