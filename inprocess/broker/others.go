package broker

// othersSize bounds the connections in each of the two generations.
const othersSize = 32768

// others records how many ring bytes are already counted of connections that this broker does not have, or no more:
// those of an earlier broker, and those that go on although their program has disconnected from this one. It forgets
// the connections that it has not heard of for longest.
type others struct{ now, old map[uint64]uint64 }

// more takes the total that a connection has moved and returns the part that is not counted yet: none for a connection
// seen for the first time, since it is another broker's.
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

// set records how much of a connection is counted.
func (o *others) set(id, moved uint64) {
	if _, known := o.now[id]; !known && (o.now == nil || len(o.now) >= othersSize) {
		o.now, o.old = map[uint64]uint64{}, o.now
	}
	o.now[id] = moved
}
