package carrier

import (
	"time"

	"github.com/smcgw/smcgw/rmb"
)

const (
	// ringStep is the factor by which a receive ring grows and shrinks.
	ringStep = 4
	// A pass is as many bytes as the ring holds. A pass is hot if it took no longer than
	// hotPass and the peer used up its grants during it: the peer ran out of room although
	// the application takes what it gets. A pass is lean if the peer did not, and no turn
	// found more than one leanPart-th of the ring filled. passes is how many hot (or lean)
	// passes, minus those that were not, make the ring grow (or shrink).
	hotPass  = 10 * time.Millisecond
	leanPart = 16
	passes   = 4
	// ringRetry is how long a flow keeps its ring after there was no memory for another.
	ringRetry = 10 * time.Second
	// ringPage is the amount of memory that a first touch brings in.
	ringPage = 4096

	largeRing = 4 << 20
	// farRing is the ring of a flow over a network while memory is plentiful: it allows four
	// reads in flight, and a larger ring would no longer fit a processor's caches. A sender
	// that has filled the ring and waits for the answer leaves two processors idle.
	//
	// It is slightly less than 2 MiB so that a quarter of it is not a multiple of a path MTU.
	// The last packet of a message also carries the immediate: with a full MTU of payload it
	// would be longer than the packets before it, and become a train of its own.
	farRing = 2<<20 - 8*128
)

// ringPlan decides the size of a link's receive ring. Small rings stay in the processors'
// caches and let many flows live in little memory; a bulk flow needs room for what arrives
// while its application is woken up.
//
//	first ── hot passes: × ringStep ──► … ──► most
//	  ▲                                        │
//	  └───────── lean passes: ÷ ringStep ──────┘
type ringPlan struct {
	first, most int32

	retry     time.Time // no change before this time: there was no memory
	began     time.Time // start of the pass
	passed    int32     // bytes of the pass
	largest   int32     // largest turn of the pass
	spent     bool
	hot, lean uint8
}

// next returns the size that a ring of the given size should have after a turn that took took
// bytes. spent reports whether the peer had used up its grants.
func (p *ringPlan) next(size, took int, spent bool, now time.Time) int {
	p.passed += int32(took)
	p.largest = max(p.largest, int32(took))
	p.spent = p.spent || spent
	if int(p.passed) < size {
		return size
	}
	p.hot = score(p.hot, p.spent && now.Sub(p.began) <= hotPass)
	p.lean = score(p.lean, !p.spent && int(p.largest) <= size/leanPart)
	p.began, p.passed, p.largest, p.spent = now, 0, 0, false
	if now.Before(p.retry) {
		return size
	}
	switch {
	case p.hot == passes && size < int(p.most):
		p.hot, p.lean = 0, 0
		return min(size*ringStep, int(p.most))
	case p.lean == passes && size > int(p.first):
		p.hot, p.lean = 0, 0
		return max(size/ringStep, int(p.first))
	}
	return size
}

func score(n uint8, yes bool) uint8 {
	if yes {
		return min(n+1, passes)
	}
	return max(n, 1) - 1
}

// FitRing is called after a turn that took took bytes of a direction that is still open.
func (l *Link) FitRing(took int) {
	size := l.EP.RingSize()
	want := l.rings.next(size, took, l.EP.GrantsSpent(), l.Shard.Now())
	if want != size && l.mayExchange() && (want < size || l.env.mayGrow(want)) {
		l.exchange(want, want > size)
	}
}

// Exchange requests a receive ring of n bytes in place of the present one, regardless of the
// plan, and reports whether it may come.
func (l *Link) Exchange(n int) bool {
	if !l.mayExchange() {
		return false
	}
	l.exchange(n, false)
	return true
}

func (l *Link) mayExchange() bool {
	return l.phase != linkClosed && !l.fitting && l.EP.CanSwitchRing()
}

// exchange allocates the ring. counted: mayGrow has counted it.
func (l *Link) exchange(n int, counted bool) {
	l.fitting = true
	go func() { // memory may have to be registered, and is first touched here
		defer l.contain()
		r, err := l.Arena.Alloc(n)
		if counted {
			l.env.growing.Add(-int64(n)) // now the pool counts it
		}
		if err == nil {
			for i := 0; i < len(r.Bytes()); i += ringPage {
				r.Bytes()[i] = 0
			}
		}
		l.Shard.Post(func() { l.fitted(r, err) })
	}()
}

// contain is deferred by goroutines that work for the link.
func (l *Link) contain() {
	if r := recover(); r != nil {
		l.Owner().Panicked(r)
	}
}

// mayGrow reports whether a larger ring may be requested. It counts the ring as used until
// the pool does, so that many links asking at once cannot take what is reserved for
// connections to come.
func (env *Env) mayGrow(n int) bool {
	asked := env.growing.Add(int64(n))
	if env.Pool.Stats().MayGrow(int(asked)) {
		return true
	}
	env.growing.Add(-int64(n))
	return false
}

// fitted receives the memory for another ring.
func (l *Link) fitted(r *rmb.Region, err error) {
	l.Shard.WorksFor(l.Owner())
	l.fitting = false
	switch {
	case err != nil:
		l.rings.retry = l.Shard.Now().Add(ringRetry) // no memory: keep the present ring
	case l.phase == linkClosed || l.EP.SwitchRing(r) != nil:
		l.free(r)
		if l.phase == linkClosed && l.reap != nil {
			l.reap()
		}
	}
	if l.phase != linkClosed && l.EP.Err() != nil {
		l.of.User.Broken()
	}
}

// FreeRetired frees the ring that the endpoint has finished with, if any. The endpoint seldom
// finishes with it right at its last byte, and by then the connection may be idle.
func (l *Link) FreeRetired() {
	if r := l.EP.RetiredRing(); r != nil {
		l.free(r)
	}
}

func (l *Link) free(r *rmb.Region) {
	if err := r.Free(); err != nil {
		l.env.Log.Warn("free receive ring", "flow_id", l.of.ID, "error", err)
	}
}

// newRings returns the plan of a new link. Rings of devices that do not write in place keep
// their size.
func (env *Env) newRings(mapped bool) ringPlan {
	st := env.Pool.Stats()
	if mapped {
		return ringPlan{first: int32(st.FirstRingSize()), most: largeRing}
	}
	n := int32(st.RingSize())
	if st.Used < st.Limit/8 {
		n = farRing
	}
	return ringPlan{first: n, most: n}
}
