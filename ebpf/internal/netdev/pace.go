package netdev

import "time"

// paceShare bounds the time spent on looking at what may change all the time, such as routes, to one part in paceShare.
const paceShare = 50

// Pace spaces looks by how long they take. The zero value permits one immediately.
type Pace struct {
	at   time.Time
	took time.Duration
}

// Early returns how long until the next look is permitted, or 0 if it is.
func (p *Pace) Early() time.Duration { return max(0, paceShare*p.took-time.Since(p.at)) }

// Begin notes the beginning of a look, and end its end.
func (p *Pace) Begin() (end func()) {
	p.at = time.Now()
	return func() { p.took = time.Since(p.at) }
}
