package broker

// othersSize bounds the connections of each of two generations.
const othersSize = 32768

// others has the ring bytes, as far as they are counted, of connections that are not the broker's, or are no more: those of
// a broker before, and those that go on where their program has let go of this one. It forgets those that it has not been
// told of for longest.
type others struct{ now, old map[uint64]uint64 }

// more takes in what a connection has moved, and returns what of that does not count yet. Of one that is new nothing does: it
// is another broker's.
func (o *others) more(id, moved uint64) uint64 {
	was, known := o.now[id]
	if !known {
		was, known = o.old[id]
	}
	if !known {
		was = moved
	}
	o.set(id, max(was, moved))
	return max(was, moved) - was
}

// set says how much of a connection is counted.
func (o *others) set(id, moved uint64) {
	if _, known := o.now[id]; !known && (o.now == nil || len(o.now) >= othersSize) {
		o.now, o.old = map[uint64]uint64{}, o.now
	}
	o.now[id] = moved
}
