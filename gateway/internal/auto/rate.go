package auto

import "math"

const (
	// autoBulk is what a connection must have moved to say how fast bulk is; the
	// programs have the same limit.
	autoBulk = 1 << 20
	// autoChance is by how much one connection is faster than another by chance (the
	// standard deviation, as a part), as far as connections have not shown otherwise.
	autoChance = 0.25
	// autoPrior is how many connections have to show otherwise to count as much.
	autoPrior = 2
	// autoSure is by how many standard deviations one kind of connections has to be faster
	// than the other.
	autoSure = 2
	// autoEnough is how many connections decide a race that is too close to be sure of.
	autoEnough = 16
	// autoKept is of how many looks at connections the older half is forgotten.
	autoKept = 64
)

// rate is how fast connections have moved bulk: of their whole lives, since
// that is what an application waits for.
type rate struct {
	conns, bytes uint64
	seconds      float64

	// Sums over what was added at a time: squares of the bytes and the seconds, and
	// their products.
	squares, products, times float64
}

// add takes in connections that ended together. Those that moved too little tell nothing, nor those whose time was not
// counted yet: the programs add it behind the bytes.
func (r *rate) add(o rate) {
	if o.conns == 0 || o.seconds <= 0 || o.bytes < o.conns*autoBulk {
		return
	}
	if r.looks() >= autoKept {
		*r = rate{r.conns / 2, r.bytes / 2, r.seconds / 2, r.squares / 2, r.products / 2, r.times / 2}
	}
	b := float64(o.bytes)
	r.conns, r.bytes, r.seconds = r.conns+o.conns, r.bytes+o.bytes, r.seconds+o.seconds
	r.squares, r.products, r.times = r.squares+b*b, r.products+b*o.seconds, r.times+o.seconds*o.seconds
}

// perSecond is the bytes per second of one connection.
func (r *rate) perSecond() float64 {
	if r.seconds <= 0 {
		return 0
	}
	return float64(r.bytes) / r.seconds
}

// mean is what a connection moves.
func (r *rate) mean() float64 { return quotient(r.bytes, r.conns) }

// looks is how many times were added, as if all had been of one length.
func (r *rate) looks() float64 {
	if r.times <= 0 {
		return 0
	}
	return r.seconds * r.seconds / r.times
}

// variance is that of the logarithm of perSecond. It is of the time that was added at
// once against what the bytes take at the mean speed.
func (r *rate) variance() float64 {
	n, v := r.looks(), r.perSecond()
	if n == 0 || v == 0 {
		return math.Inf(1)
	}
	differs := max(0, r.times-2*r.products/v+r.squares/(v*v)) / r.times
	return (autoPrior*autoChance*autoChance + n*differs) / (autoPrior + n - 1) / n
}

// race compares carried with native connections: by how much carried ones are faster, and
// the standard deviation of that, both as logarithms.
func race(carried, native *rate) (ahead, deviation float64) {
	return math.Log(carried.perSecond() / native.perSecond()), math.Sqrt(carried.variance() + native.variance())
}
