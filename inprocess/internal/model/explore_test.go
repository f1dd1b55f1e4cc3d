package model

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// config bounds what is explored.
type config struct {
	name string
	memory
	conns      int
	bytes      int // to send, on each connection
	smallest   int // ring
	largest    int
	sndbuf     int
	rcvbuf     int
	promotions int  // at most
	demotions  int  // by the producer's own will
	promoted   bool // begins in the ring
	blocks     bool // the writer waits for room
	extends    bool // or makes the ring larger, with bytes unread
	mode       mode
	recall     bool // the consumer may ask for it, at any call
	freeze     bool // the consumer may do this, at any call
	killP      bool
	killC      bool
	chunks     bool // a read takes one byte or all
	mutation   mutation
	noEnd      bool // the connection stays open
	limit      int
}

// state is the whole of it: copied for each step, so slices are never changed in place.
type state struct {
	*run
	memory [2]half
	kernel [connections]stream
	p      producerState
	c      consumerState
}

// run is what does not change with the state.
type run struct {
	config
	script  []int // choices of the step
	next    int
	widths  []int
	failure string
	seen    map[[2]uint64]struct{}
	seeds   [2]maphash.Seed
	buf     []byte
	trace   []step
	free    []*state // that nothing holds any more
	ends    int
}

type step struct {
	actor string
	at    string
	picks []int
}

func (s *state) memoryOrder() memory { return s.config.memory }

// choose picks one of n ways to go on; all of them are explored.
func (r *run) choose(n int) int {
	if n <= 1 {
		return 0
	}
	if r.next == len(r.script) {
		r.script = append(r.script, 0)
		r.widths = append(r.widths, n)
	}
	r.next++
	return r.script[r.next-1]
}

func (r *run) fail(format string, args ...any) {
	if r.failure == "" {
		r.failure = fmt.Sprintf(format, args...)
	}
}

// advance makes script the next one, in the order of an odometer.
func (r *run) advance() bool {
	for i := len(r.script) - 1; i >= 0; i-- {
		r.script[i]++
		if r.script[i] < r.widths[i] {
			r.script, r.widths = r.script[:i+1], r.widths[:i+1]
			return true
		}
	}
	return false
}

// actor is one that may make a step.
type actor struct {
	name string
	at   func(*state) string
	// can tells whether it is not waiting.
	can func(*state) bool
	do  func(*state)
	// alone tells that no other order of this step and the others' makes a difference.
	alone func(*state) bool
	fault bool // an event that may happen, not one that must
}

func actors(c config) []actor {
	l := []actor{
		{name: "P", at: (*state).producerAt, can: (*state).producerCan, do: (*state).producerStep, alone: (*state).producerAlone},
		{name: "C", at: (*state).consumerAt, can: (*state).consumerCan, do: (*state).consumerStep, alone: (*state).consumerAlone},
	}
	for i := range c.conns {
		at := fmt.Sprintf("arrives %d", i)
		l = append(l, actor{
			name: "K", at: func(*state) string { return at },
			can: func(s *state) bool { return s.kernel[i].canArrive(s) },
			do:  func(s *state) { s.kernel[i].arrive() },
		})
	}
	if c.killP {
		l = append(l, actor{
			name: "kill", at: func(*state) string { return "P" }, fault: true,
			can: func(s *state) bool { return !s.p.dead && s.p.pc != pEnd && !s.c.dead }, do: (*state).killProducer,
		})
	}
	if c.killC {
		l = append(l, actor{
			name: "kill", at: func(*state) string { return "C" }, fault: true,
			can: func(s *state) bool { return !s.c.dead && s.c.pc != cEnd && !s.p.dead }, do: (*state).killConsumer,
		})
	}
	return l
}

// explore visits every state that can be reached, and says what is wrong with the first wrong one.
func explore(c config) (r *run, err error) {
	r = &run{config: c, seen: map[[2]uint64]struct{}{}, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	s := newState(r)
	if !r.visit(s, actors(c)) {
		var b strings.Builder
		fmt.Fprintf(&b, "%s\n", r.failure)
		for _, t := range r.trace {
			fmt.Fprintf(&b, "  %s %s", t.actor, t.at)
			if len(t.picks) > 0 {
				fmt.Fprintf(&b, " %v", t.picks)
			}
			b.WriteByte('\n')
		}
		return r, fmt.Errorf("%s", b.String())
	}
	return r, nil
}

// copy returns a copy of a state.
func (r *run) copy(s *state) (n *state) {
	if last := len(r.free) - 1; last >= 0 {
		n, r.free = r.free[last], r.free[:last]
	} else {
		n = new(state)
	}
	*n = *s
	return n
}

func (r *run) visit(s *state, all []actor) bool {
	r.buf = s.append(r.buf[:0])
	key := [2]uint64{maphash.Bytes(r.seeds[0], r.buf), maphash.Bytes(r.seeds[1], r.buf)}
	if _, ok := r.seen[key]; ok {
		return true
	}
	r.seen[key] = struct{}{}
	if r.limit > 0 && len(r.seen) > r.limit {
		r.fail("more than %d states", r.limit)
		return false
	}
	alone := -1
	for i := range all {
		if f := all[i].alone; f != nil && s.config.memory != sc && all[i].can(s) && f(s) {
			alone = i
			break
		}
	}
	quiet := true
	for i := range all {
		a := &all[i]
		if !a.can(s) || alone >= 0 && alone != i && !a.fault {
			continue
		}
		quiet = quiet && a.fault
		var script, widths []int
		for more := true; more; {
			n := r.copy(s)
			r.script, r.widths, r.next = script, widths, 0
			at := a.at(s)
			a.do(n)
			script, widths = r.script, r.widths
			if len(script) > 0 {
				script, widths = append([]int(nil), script...), append([]int(nil), widths...)
			}
			r.trace = append(r.trace, step{a.name, at, append([]int(nil), script...)})
			if r.failure != "" || !r.visit(n, all) {
				return false
			}
			r.free = append(r.free, n)
			r.trace = r.trace[:len(r.trace)-1]
			r.script, r.widths = script, widths
			more = r.advance()
			script, widths = r.script, r.widths
		}
	}
	if quiet {
		r.ends++
		if s.quiet(); r.failure != "" {
			return false
		}
	}
	return true
}

func (s *state) append(b []byte) []byte {
	words, weakly := s.conns*int(producerWords), s.config.memory == weak // a consumer has fewer
	for t := range s.memory {
		b = s.memory[t].append(b, words, weakly)
	}
	for i := range s.conns {
		b = s.kernel[i].append(b, &s.memory[producer].seen, words)
	}
	b = s.p.append(b, s)
	return s.c.append(b, s)
}
