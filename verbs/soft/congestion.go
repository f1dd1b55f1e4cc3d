package soft

// congestion is a sender's window: additive increase, multiplicative decrease like TCP Reno (RFC 5681). It counts
// bytes, so that a small path MTU is no disadvantage against TCP, and it is bounded.
//
//	       ACK: + bytes acked             ACK: + increase per window
//	slow start ─── window ≥ threshold ───► congestion avoidance
//	    ▲   loss: threshold = window × β, CNP: × (1 - 1/8), at most once per window sent
//	    └── loss, timeout: window = the initial one or less
//
// A loss leads to slow start because go-back-N receives no acknowledgements that could clock it: packets in flight
// after the gap are dropped by the receiver but still fill the queue. A whole window on top of them would be lost, and
// displace the packets of other flows.
type congestion struct {
	mtu       float64
	window    float64 // bytes
	threshold float64
}

const (
	initialWindow = 32 << 10
	maxWindow     = 4 << 20
	// increase is added per round trip: α of CUBIC's Reno-friendly region (RFC 9438, 4.3) for its β, in segments of a TCP
	// on an Ethernet.
	increase = 3 * (1 - lossFactor) / (1 + lossFactor) * 1448
	// lossFactor is CUBIC's β (RFC 9438, 4.6), which competing TCPs use.
	lossFactor = 0.7
	cnpFactor  = 0.875
	// minPackets is the minimum window after a loss, in packets.
	minPackets = 2
)

func (c *congestion) init(mtu int) {
	*c = congestion{mtu: float64(mtu), window: max(initialWindow, 4*float64(mtu)), threshold: maxWindow}
}

// packets returns the window in packets.
func (c *congestion) packets() int { return max(1, int(c.window/c.mtu)) }

// acked grows the window; limited says that the window was what held the sender back.
func (c *congestion) acked(packets int, limited bool) {
	if !limited || packets <= 0 {
		return
	}
	n := float64(packets) * c.mtu
	if c.window < c.threshold {
		c.window += n
	} else {
		c.window += increase * n / c.window
	}
	c.window = min(c.window, maxWindow)
}

// lost handles a loss reported by an answer. again says that the window was already reduced for it, so that only the
// retransmission has to be slow.
func (c *congestion) lost(again bool) {
	if !again {
		c.shrink(lossFactor)
	}
	c.window = min(c.window, max(initialWindow, minPackets*c.mtu))
}

func (c *congestion) shrink(factor float64) {
	c.threshold = max(c.window*factor, minPackets*c.mtu)
	c.window = c.threshold
}

// timeout handles a loss that no answer reported. A first one may be a lost tail or a sleeping peer; several in a row
// mean that nothing gets through at any rate, so they keep the threshold of the first (RFC 5681, 3.1).
func (c *congestion) timeout(inRow int) {
	if inRow <= 1 {
		c.threshold = max(c.window/2, minPackets*c.mtu)
		c.window = min(c.threshold, initialWindow)
	} else {
		c.window = minPackets * c.mtu
	}
}

// idle forgets the old window, since the path may have changed (RFC 2861).
func (c *congestion) idle() {
	c.threshold = max(c.threshold, c.window*3/4)
	c.window = min(c.window, max(initialWindow, 4*c.mtu))
}

// roundTrip estimates the round trip time and from it the retransmission timer
// (RFC 6298), in nanoseconds.
type roundTrip struct {
	srtt, rttvar int64
	backoff      uint
	borrowed     bool  // from another queue pair: the first sample replaces it, since the path may have changed
	late         int64 // how late the answer to packets was that the timer did not wait for, 0 since the last sample
}

const (
	millisecond = 1_000_000
	// minRTO exceeds the time by which a busy machine delays its loops.
	minRTO     = 10 * millisecond
	maxRTO     = 1000 * millisecond
	maxBackoff = 7
)

func (r *roundTrip) sample(rtt int64) {
	r.late = 0
	if rtt <= 0 {
		rtt = 1
	}
	if r.srtt == 0 || r.borrowed {
		r.srtt, r.rttvar, r.borrowed = rtt, rtt/2, false
		return
	}
	diff := r.srtt - rtt
	if diff < 0 {
		diff = -diff
	}
	r.rttvar += (diff - r.rttvar) / 4
	r.srtt += (rtt - r.srtt) / 8
}

// timer returns the time to wait for an answer; initial is used before the first sample.
func (r *roundTrip) timer(initial int64) int64 {
	t := initial
	if r.srtt != 0 {
		t = r.srtt + 4*r.rttvar
	}
	t = max(t, r.late+r.late/4)
	t = min(max(t, minRTO), maxRTO)
	return min(t<<r.backoff, max(t, min(2*initial, maxRTO)))
}
