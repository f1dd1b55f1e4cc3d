package segment

import (
	"time"

	"github.com/smcgw/smcgw/packet"
)

// What distinguishes a path that silently drops large packets from one that loses packets. Linux waits for the same
// three repetitions, and for 3 s.
const (
	holeRepeats = 3
	holeAfter   = time.Second
	// probePause is the time between the loss of a larger packet and the next attempt.
	probePause = time.Second
	// probeAgain is when larger packets are tried again after the largest size has been found (RFC 4821 7.3; Linux:
	// tcp_probe_interval).
	probeAgain = 10 * time.Minute
	// probeFlight is how many packets must be in flight when a larger one is tried: three packets after it reveal its
	// loss without a timeout.
	probeFlight = 5
)

// sizeState is what is known about a path:
//
//	       3 repetitions in 1 s           bytes acknowledged
//	whole ──────────────────────► lowered ──────────────────► resting ◄──┐
//	  ▲                           ▲ │  ▲    3 repetitions in 1 s │ │      │ lost, or arrived
//	  │                   repeated└─┘  └───────────────────────┬─┘ │ next │ and not all
//	  │                                                        │   ▼      │
//	  └────────────────────────────────────────────────────── probing ────┘
//	                        arrived, and was whole
//
// A repetition is a retransmission of the oldest unacknowledged bytes in a packet that would be smaller in the next
// state.
type sizeState uint8

const (
	sizeWhole sizeState = iota
	sizeLowered
	sizeResting
	sizeProbing
)

// Smaller path MTUs are refused, since they are attacks or nonsense.
const (
	LeastMTU4 = 552 // of IPv4: Linux's net.ipv4.route.min_pmtu
	LeastMTU6 = 1280
)

// Packet sizes in a black hole: the largest of these that is smaller than what is lost. On IPv4 they are those of
// Linux: a segment of 1024 bytes with its headers, and the minimum. Every IPv6 path takes 1280 bytes.
var (
	lowered4 = [...]int{1076, LeastMTU4}
	lowered6 = [...]int{LeastMTU6}
)

// plateaus are common path MTUs (RFC 1191 7.1, and today's tunnels), which are tried above the size that a black hole
// has left.
var plateaus = [...]int{
	LeastMTU4, 1006, 1076, 1280, 1340, 1380, 1400, 1420, 1440, 1450, 1460, 1476, 1492, 1500,
	2002, 4352, 8166, 8900, 9000, 17914, 32000,
}

// PathSize finds the largest packet that the path of a wire leg takes, if routers drop larger ones without an ICMP
// message (packetization layer path MTU discovery, RFC 4821; gVisor has none). It is told what is sent and
// acknowledged, in sequence numbers of the wire, and decides how large packets may be. It reads no clock and sends
// nothing. The zero value knows of no black hole.
type PathSize struct {
	// V6 says that the path is IPv6.
	V6    bool
	state sizeState
	limit int           // the largest packet; unused in sizeWhole
	lost  int           // the smallest packet that was tried and lost; 0 if none was
	next  time.Duration // when a larger packet may be tried, in sizeResting

	// biggest is the largest packet that the stack wanted to send. It is the whole size if no device segments packets
	// later.
	biggest int

	// The oldest bytes that were retransmitted, how often, and since when. oldest is valid if repeats is not 0.
	oldest  uint32
	repeats int
	since   time.Duration

	// The larger packet in flight in sizeProbing: its size, whether none can be larger, and its bytes.
	probe    int
	top      bool
	from, to uint32
}

// Outgoing is an outbound segment with payload. Sizes are those of IP packets.
type Outgoing struct {
	Seq, End uint32
	Una      uint32        // the oldest unacknowledged sequence number
	Sent     uint32        // the first sequence number that was not sent before
	Size     int           // of the packet before it is cut
	Headers  int           // the packet's
	Whole    int           // the largest packet if there is no black hole
	Now      time.Duration // on any monotonic clock
}

// Fresh reports whether part of the segment is sent for the first time.
func (g *Outgoing) Fresh() bool { return packet.After(g.End, g.Sent) }

// Cut says how a segment leaves: in packets of at most these sizes.
type Cut struct {
	First, Rest int
	Hole        bool // this segment has revealed a black hole
}

// Send returns how g may leave.
func (p *PathSize) Send(g Outgoing) Cut {
	hole := false
	p.biggest = max(p.biggest, g.Size)
	switch {
	case !g.Fresh():
		hole = p.repeated(g)
	case p.probes(g):
		return Cut{First: p.probe, Rest: p.limit}
	}
	n := p.largest(g.Whole)
	return Cut{First: n, Rest: n, Hole: hole}
}

// largest returns the size of the largest packet that is not a probe.
func (p *PathSize) largest(whole int) int {
	if p.state == sizeWhole {
		return whole
	}
	return min(p.limit, whole)
}

// Limited reports whether p must be told about fresh segments and acknowledgements.
func (p *PathSize) Limited() bool { return p.state != sizeWhole }

// repeated records that g is a retransmission, and reports whether it reveals a black hole.
func (p *PathSize) repeated(g Outgoing) bool {
	if p.state == sizeProbing && packet.After(p.to, g.Seq) && packet.After(g.End, p.from) {
		p.state, p.lost, p.next = sizeResting, p.probe, g.Now+probePause
	}
	lower := p.below(min(g.Size, p.largest(g.Whole)))
	if g.Seq != g.Una || lower == 0 {
		return false
	}
	if p.repeats == 0 || p.oldest != g.Seq {
		p.oldest, p.repeats, p.since = g.Seq, 0, g.Now
	}
	p.repeats++
	if p.state != sizeLowered && (p.repeats < holeRepeats || g.Now-p.since < holeAfter) {
		return false
	}
	p.state, p.limit, p.lost = sizeLowered, lower, 0
	return true
}

// below returns the size for packets of n bytes in a black hole, or 0 if they are small enough to pass everywhere.
func (p *PathSize) below(n int) int {
	sizes := lowered4[:]
	if p.V6 {
		sizes = lowered6[:]
	}
	for _, size := range sizes {
		if size < n {
			return size
		}
	}
	return 0
}

// Acked records that everything before ack has arrived.
func (p *PathSize) Acked(ack uint32, now time.Duration) {
	switch {
	case p.state == sizeLowered && packet.After(ack, p.oldest):
		p.state, p.repeats, p.next = sizeResting, 0, now+probePause
	case p.state == sizeProbing && !packet.After(p.to, ack):
		p.state, p.limit, p.next = sizeResting, p.probe, now
		if p.top {
			*p = PathSize{V6: p.V6}
		}
	}
}

// probes reports whether the first packet of g should be a larger one, and starts to watch it if so.
func (p *PathSize) probes(g Outgoing) bool {
	if p.state != sizeResting || g.Now < p.next || g.Seq != g.Sent || int(g.End-g.Una) < probeFlight*p.limit {
		return false
	}
	whole := min(g.Whole, p.biggest)
	size := p.candidate(whole)
	if size == 0 {
		p.lost, p.next = 0, g.Now+probeAgain
		return false
	}
	if g.Size < size {
		return false
	}
	p.state, p.probe, p.top = sizeProbing, size, size == whole
	p.from, p.to = g.Seq, g.Seq+uint32(size-g.Headers)
	return true
}

// candidate returns the size to try next, or 0 if none is left. The first is the whole size, in case it was a
// partition, or the path is as it was before. The others bisect the list.
func (p *PathSize) candidate(whole int) int {
	if whole <= p.limit {
		return 0
	}
	if p.lost == 0 || p.lost > whole {
		return whole
	}
	first, n := 0, 0
	for i, size := range plateaus {
		if size > p.limit && size < p.lost {
			if n == 0 {
				first = i
			}
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return plateaus[first+n/2]
}
