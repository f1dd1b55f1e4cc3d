package netdev

import "time"

// paceShare bounds the time that looks take at what may change all the time, such as routes:
// one part in so many.
const paceShare = 50

// Pace spaces looks by how long they take. The zero value has seen none.
type Pace struct {
	at   time.Time
	took time.Duration
}

// Early returns how long it takes until it is time for the next look, 0 if it is.
func (p *Pace) Early() time.Duration { return max(0, paceShare*p.took-time.Since(p.at)) }

// Begin begins a look, which end ends.
func (p *Pace) Begin() (end func()) {
	p.at = time.Now()
	return func() { p.took = time.Since(p.at) }
}
