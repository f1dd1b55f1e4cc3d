package soft

import "time"

// simTCP is an endless TCP transfer with the congestion control that every
// sender must share with: Reno (RFC 5681) with selective acknowledgements, in
// segments without contents. It is a neighbour in the bottleneck, no more: no
// handshake, no delayed acknowledgements, no receive window.
type simTCP struct {
	net      *simNet
	way      *simRoute
	back     *simRoute
	cwnd     float64 // segments
	ssthresh float64
	next     int       // first segment never sent
	recover  int       // a loss of a segment before this one is part of the same event
	flying   []simSent // in the order of transmission
	lost     []int     // to be sent again
	tx       int
	arrived  map[int]bool
	alive    int // counts acknowledgements, for the timer

	bytes    int // that reached the receiver, once each
	timeouts int
	halvings int
}

// simSent is one transmission of a segment.
type simSent struct{ tx, segment int }

const (
	simSegment  = 1448
	simTCPFrame = simSegment + 32 + 20 + 38 // header with timestamps, IPv4, Ethernet
	simTCPAck   = 32 + 20 + 38
	simRTO      = 200 * time.Millisecond // the least of Linux
)

// startTCP begins a transfer after a delay.
func startTCP(n *simNet, way, back *simRoute, after time.Duration) *simTCP {
	f := &simTCP{net: n, way: way, back: back, cwnd: 10, ssthresh: 1e9, arrived: map[int]bool{}}
	n.after(after, f.fill)
	return f
}

// fill sends what the window allows.
func (f *simTCP) fill() {
	for float64(len(f.flying)) < f.cwnd {
		segment := f.next
		if len(f.lost) > 0 {
			segment, f.lost = f.lost[0], f.lost[1:]
		} else {
			f.next++
		}
		f.tx++
		s := simSent{f.tx, segment}
		f.flying = append(f.flying, s)
		f.way.carry(simTCPFrame, false, func(bool) { f.arrive(s) })
	}
	alive := f.alive
	f.net.after(simRTO, func() { f.timeout(alive) })
}

// arrive is the receiver.
func (f *simTCP) arrive(s simSent) {
	if !f.arrived[s.segment] {
		f.arrived[s.segment] = true
		f.bytes += simSegment
	}
	f.back.carry(simTCPAck, false, func(bool) { f.ack(s) })
}

// ack frees the window; three later transmissions acknowledged mean loss.
func (f *simTCP) ack(s simSent) {
	f.alive++
	found := false
	keep := f.flying[:0]
	for _, o := range f.flying {
		switch {
		case o.tx == s.tx:
			found = true
		case o.tx+3 <= s.tx:
			f.lose(o.segment)
		default:
			keep = append(keep, o)
		}
	}
	f.flying = keep
	if found && s.segment >= f.recover {
		if f.cwnd < f.ssthresh {
			f.cwnd++
		} else {
			f.cwnd += 1 / f.cwnd
		}
	}
	f.fill()
}

func (f *simTCP) lose(segment int) {
	if !f.arrived[segment] {
		f.lost = append(f.lost, segment)
	}
	if segment >= f.recover {
		f.recover = f.next
		f.ssthresh = max(f.cwnd/2, 2)
		f.cwnd = f.ssthresh
		f.halvings++
	}
}

func (f *simTCP) timeout(alive int) {
	if alive != f.alive || len(f.flying) == 0 {
		return
	}
	f.alive++
	f.timeouts++
	for _, o := range f.flying {
		f.lose(o.segment)
	}
	f.flying = nil
	f.cwnd = 1
	f.fill()
}
