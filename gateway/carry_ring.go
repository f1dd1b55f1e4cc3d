package gateway

import (
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/rmb"
)

const (
	// ringStep is what a receive ring grows and shrinks by.
	ringStep = 4
	// A pass is as many bytes as the ring holds. A hot one took no longer than
	// hotPass, and in it the peer had filled all it was granted: it ran out of room
	// although the application takes what it gets. In a lean one it did not, and no
	// turn found more than one part in leanPart. passes is how many of them, less those that
	// were not, make the ring grow and shrink.
	hotPass  = 10 * time.Millisecond
	leanPart = 16
	passes   = 4
	// ringRetry is how long a flow for which there was no memory goes on with the
	// ring it has.
	ringRetry = 10 * time.Second
	// ringPage is what the first touch of memory brings in.
	ringPage = 4096

	smallRing = 64 << 10
	largeRing = 4 << 20
	// farRing is the ring of a flow over a network while memory is plenty: four reads
	// may be under way, and more does not fit the caches of a processor any more. Who
	// waits for the answer to a ring that is full lets two processors wait.
	//
	// It is a little less than 2 MiB so that a quarter of it is no multiple of a path
	// MTU. The last packet of a message carries the immediate besides; a whole MTU in
	// it would make it longer than those before it, and a train of its own.
	farRing = 2<<20 - 8*128
)

// ringPlan decides how large the receive ring of a flow is. Small rings stay in
// the processors' caches and let many flows live in little memory; a bulk flow
// needs room for what comes while its application is woken up.
//
//	first ── hot passes: × ringStep ──► … ──► most
//	  ▲                                        │
//	  └───────── lean passes: ÷ ringStep ──────┘
type ringPlan struct {
	first, most int

	retry     time.Time // no other size before: there was no memory
	began     time.Time // of the pass
	passed    int       // bytes of it
	largest   int       // turn of it
	spent     bool
	hot, lean int
}

// next returns the size that the ring of the given size should have after a turn
// that took so many bytes; spent tells whether the peer had used up its grants.
func (p *ringPlan) next(size, took int, spent bool, now time.Time) int {
	p.passed += took
	p.largest = max(p.largest, took)
	p.spent = p.spent || spent
	if p.passed < size {
		return size
	}
	p.hot = score(p.hot, p.spent && now.Sub(p.began) <= hotPass)
	p.lean = score(p.lean, !p.spent && p.largest <= size/leanPart)
	p.began, p.passed, p.largest, p.spent = now, 0, 0, false
	if now.Before(p.retry) {
		return size
	}
	switch {
	case p.hot == passes && size < p.most:
		p.hot, p.lean = 0, 0
		return min(size*ringStep, p.most)
	case p.lean == passes && size > p.first:
		p.hot, p.lean = 0, 0
		return max(size/ringStep, p.first)
	}
	return size
}

func score(n int, yes bool) int {
	if yes {
		return min(n+1, passes)
	}
	return max(n-1, 0)
}

// fitRing is called after a turn that took so many bytes.
func (c *carry) fitRing(took int) {
	size := c.ep.RingSize()
	want := c.rings.next(size, took, c.ep.GrantsSpent(), c.s.Now())
	if want == size || c.fitting || c.f.books.rx != rxOpen || !c.ep.CanSwitchRing() {
		return
	}
	grows := want > size
	if grows && !c.f.g.mayGrow(want) {
		return
	}
	c.fitting = true
	go func() { // memory may have to be registered, and is touched here for the first time
		defer c.f.contain()
		r, err := c.arena.Alloc(want)
		if grows {
			c.f.g.growing.Add(-int64(want)) // the pool counts it now
		}
		if err == nil {
			for i := 0; i < len(r.Bytes()); i += ringPage {
				r.Bytes()[i] = 0
			}
		}
		c.s.Post(func() { c.fitted(r, err) })
	}()
}

// mayGrow reports whether a larger ring may be asked for. It counts as used from
// here on until the pool counts it: what is kept for connections to come is kept
// from many flows that ask at once, too.
func (g *gateway) mayGrow(n int) bool {
	asked := g.growing.Add(int64(n))
	if g.pool.Stats().MayGrow(int(asked)) {
		return true
	}
	g.growing.Add(-int64(n))
	return false
}

// fitted takes the memory for another ring.
func (c *carry) fitted(r *rmb.Region, err error) {
	c.s.WorksFor(c.f)
	c.fitting = false
	switch {
	case err != nil:
		c.rings.retry = c.s.Now().Add(ringRetry) // there is none: the flow goes on with what it has
	case c.closed || c.ep.SwitchRing(r) != nil:
		c.free(r)
		if c.closed {
			c.reap()
		}
	}
	if !c.closed && c.ep.Err() != nil {
		c.broken()
	}
}

func (c *carry) free(r *rmb.Region) {
	if err := r.Free(); err != nil {
		c.f.g.log.Warn("free receive ring", "flow_id", c.f.id, "error", err)
	}
}

// newRings returns the plan of a new flow. Rings of devices that do not write in
// place stay what they are.
func (g *gateway) newRings(mapped bool) ringPlan {
	st := g.pool.Stats()
	if !mapped {
		p := ringPlan{first: st.RingSize()}
		switch {
		case g.cfg.Profile == config.ProfileMemory:
			p.first = smallRing
		case st.Used < st.Limit/8:
			p.first = farRing
		}
		p.most = p.first
		return p
	}
	switch g.cfg.Profile {
	case config.ProfileMemory:
		return ringPlan{first: smallRing, most: smallRing}
	case config.ProfileThroughput:
		return ringPlan{first: ringStep * st.FirstRingSize(), most: largeRing}
	default:
		return ringPlan{first: st.FirstRingSize(), most: largeRing}
	}
}
