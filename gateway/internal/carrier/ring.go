package carrier

import (
	"time"

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

	largeRing = 4 << 20
	// farRing is the ring of a flow over a network while memory is plenty: four reads
	// may be under way, and more does not fit the caches of a processor any more. A
	// sender that has filled the ring and waits for the answer leaves two processors
	// idle.
	//
	// It is a little less than 2 MiB so that a quarter of it is no multiple of a path
	// MTU. The last packet of a message carries the immediate besides; a whole MTU in
	// it would make it longer than those before it, and a train of its own.
	farRing = 2<<20 - 8*128
)

// ringPlan decides how large the receive ring of a link is. Small rings stay in
// the processors' caches and let many flows live in little memory; a bulk flow
// needs room for what comes while its application is woken up.
//
//	first ── hot passes: × ringStep ──► … ──► most
//	  ▲                                        │
//	  └───────── lean passes: ÷ ringStep ──────┘
type ringPlan struct {
	first, most int32

	retry     time.Time // no other size before: there was no memory
	began     time.Time // of the pass
	passed    int32     // bytes of it
	largest   int32     // turn of it
	spent     bool
	hot, lean uint8
}

// next returns the size that the ring of the given size should have after a turn
// that took so many bytes; spent tells whether the peer had used up its grants.
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

// FitRing is called after a turn that took so many bytes of a direction that goes on.
func (l *Link) FitRing(took int) {
	size := l.EP.RingSize()
	want := l.rings.next(size, took, l.EP.GrantsSpent(), l.Shard.Now())
	if want != size && l.mayExchange() && (want < size || l.env.mayGrow(want)) {
		l.exchange(want, want > size)
	}
}

// Exchange asks for a receive ring of n bytes instead of the present one, whatever the
// plan is, and reports whether it may come.
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

// exchange allocates the ring; counted: mayGrow has counted it.
func (l *Link) exchange(n int, counted bool) {
	l.fitting = true
	go func() { // memory may have to be registered, and is touched here for the first time
		defer l.contain()
		r, err := l.Arena.Alloc(n)
		if counted {
			l.env.growing.Add(-int64(n)) // the pool counts it now
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

// mayGrow reports whether a larger ring may be asked for. It counts as used from
// here on until the pool counts it: what is kept for connections to come is kept
// from many links that ask at once, too.
func (env *Env) mayGrow(n int) bool {
	asked := env.growing.Add(int64(n))
	if env.Pool.Stats().MayGrow(int(asked)) {
		return true
	}
	env.growing.Add(-int64(n))
	return false
}

// fitted takes the memory for another ring.
func (l *Link) fitted(r *rmb.Region, err error) {
	l.Shard.WorksFor(l.Owner())
	l.fitting = false
	switch {
	case err != nil:
		l.rings.retry = l.Shard.Now().Add(ringRetry) // there is none: the link goes on with what it has
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

// FreeRetired frees the ring that the endpoint has done with, if there is one: seldom
// after the last byte of it, and then the connection may be idle.
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

// newRings returns the plan of a new link. Rings of devices that do not write in
// place stay what they are.
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
