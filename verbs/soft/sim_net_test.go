package soft

import (
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/internal/due"
)

// simNet is a network in virtual time: nothing sleeps, and one seed decides
// every fault, so a run repeats exactly. Time is counted from simEpoch.
type simNet struct {
	now    time.Duration
	rng    *rand.Rand
	events due.Queue[func()] // what will happen
	routes map[simDirection]*simRoute
	// links are the sockets: those of all vectors of the device at an address.
	links  map[netip.AddrPort][]*simLink
	strict bool // devices send nothing but correct packets
	// trace, if not nil, is told every packet that is sent, and its fate.
	trace   func(format string, args ...any)
	kicks   int     // counts what the loops cannot know of
	scatter float64 // how many datagrams come to any vector
	stats   simStats
}

// simEpoch is when virtual time begins. It is not the zero time, which means
// "never" where drivers return it.
var simEpoch = time.Unix(1_000_000_000, 0)

// simStats counts what happened to datagrams.
type simStats struct {
	sent, delivered, lost, duplicated, reordered  int
	corrupted, badChecksum                        int
	queueDrops, marked, noSocket, bufferOverflows int
	queueMax                                      int
}

// simDirection names a route.
type simDirection struct{ from, to netip.Addr }

func newSimNet(seed uint64) *simNet {
	return &simNet{
		rng:    rand.New(rand.NewPCG(seed, 0x4791)),
		routes: map[simDirection]*simRoute{},
		links:  map[netip.AddrPort][]*simLink{},
	}
}

// time is the virtual time as devices see it.
func (n *simNet) time() time.Time { return simEpoch.Add(n.now) }

// route is the way from one address to another; it begins without faults and
// with a delay of 10 µs.
func (n *simNet) route(from, to netip.Addr) *simRoute {
	d := simDirection{from, to}
	r := n.routes[d]
	if r == nil {
		r = &simRoute{net: n, delay: 10 * time.Microsecond}
		n.routes[d] = r
	}
	return r
}

// both applies f to the two directions between a and b.
func (n *simNet) both(a, b netip.Addr, f func(r *simRoute)) {
	f(n.route(a, b))
	f(n.route(b, a))
}

// chance is true with probability p.
func (n *simNet) chance(p float64) bool { return p > 0 && n.rng.Float64() < p }

// upTo is a random duration below d.
func (n *simNet) upTo(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(n.rng.Int64N(int64(d)))
}

// after runs f in virtual time and wakes up all loops; what is due at the same
// time runs in the order of the calls.
func (n *simNet) after(d time.Duration, f func()) {
	n.events.Push(n.now+max(d, 0), func() { n.kicks++; f() })
}

// simFaults is what a route does to packets.
type simFaults struct {
	loss      float64
	burst     int // longest run of packets that are lost together, within 100 µs; 0 means 1
	duplicate float64
	reorder   float64       // overtaken by later ones
	late      time.Duration // by at most this much
	jitter    time.Duration // without reordering
	mark      float64       // congestion experienced, of what is ECN capable
	corrupt   float64       // bit flips in the UDP payload
	// unchecked is how many corrupted datagrams get past the receiving kernel
	// although their UDP checksum is wrong. On a healthy path there are none:
	// devices of this package always send checksums and kernels verify them, so
	// a corrupted datagram reaches the device only if the flips cancel out in
	// the ones' complement sum. It is above 0 where no kernel checks: senders
	// like the kernel's rxe leave the checksum 0, and offloads that claim to
	// have verified one exist. Then the ICRC is the only guard. Over IPv4 a
	// socket cannot see the identification that the ICRC covers, 16 of its 32
	// bits are spent on solving for it, and one corrupted datagram in 65536
	// passes: no test that expects no wrong byte can run so. Tests that set
	// unchecked therefore use IPv6.
	unchecked float64
}

// simRoute is one direction between two addresses: queues, then faults, then
// the delay.
type simRoute struct {
	net   *simNet
	delay time.Duration
	simFaults
	hops []*simPipe
	// tap sees every datagram that enters the route and decides about it.
	tap func(src netip.AddrPort, data []byte) simVerdict

	last     time.Duration // when the packet before arrives
	lossLeft int           // of a burst
	lossEnd  time.Duration
}

// simVerdict is what a tap does with a datagram.
type simVerdict uint8

const (
	simPass simVerdict = iota
	simDrop
	simTwice
)

// carry takes a packet of size bytes to the other end, through every hop.
func (r *simRoute) carry(size int, ect bool, deliver func(ce bool)) {
	r.hop(r.hops, size, ect, ect && r.net.chance(r.mark), deliver)
}

func (r *simRoute) hop(hops []*simPipe, size int, ect, ce bool, deliver func(ce bool)) {
	if len(hops) == 0 {
		r.finish(ce, deliver)
		return
	}
	wait, marked, ok := hops[0].admit(r.net, size, ect)
	if !ok {
		return
	}
	r.net.events.Push(r.net.now+wait, func() { r.hop(hops[1:], size, ect, ce || marked, deliver) })
}

// finish applies the faults.
func (r *simRoute) finish(ce bool, deliver func(ce bool)) {
	n := r.net
	if r.lossLeft == 0 || n.now > r.lossEnd {
		r.lossLeft, r.lossEnd = 0, n.now+100*time.Microsecond
		if n.chance(r.loss) {
			r.lossLeft = 1 + n.rng.IntN(max(r.burst, 1))
		}
	}
	if r.lossLeft > 0 {
		r.lossLeft--
		n.stats.lost++
		return
	}
	copies := 1
	if n.chance(r.duplicate) {
		copies = 2
		n.stats.duplicated++
	}
	for range copies {
		at := max(r.last, n.now+r.delay+n.upTo(r.jitter))
		if n.chance(r.reorder) {
			at += n.upTo(r.late)
			n.stats.reordered++
		} else {
			r.last = at
		}
		n.events.Push(at, func() { deliver(ce) })
	}
}

// simPipe is a queue in front of a line: the network adapter of a host or a
// bottleneck that several routes share.
type simPipe struct {
	rate    float64 // bytes per second
	limit   int     // bytes the queue holds (drop tail)
	markAt  int     // bytes from which ECN capable packets are marked; 0: never
	free    time.Duration
	drops   int
	marks   int
	carried int // bytes
	max     int // most bytes in the queue
}

// admit queues a packet and tells when its last bit leaves the line.
func (p *simPipe) admit(n *simNet, size int, ect bool) (wait time.Duration, marked, ok bool) {
	queued := p.queued(n.now)
	if queued+size > p.limit {
		p.drops++
		n.stats.queueDrops++
		return 0, false, false
	}
	if p.markAt > 0 && ect && queued >= p.markAt {
		marked = true
		p.marks++
		n.stats.marked++
	}
	p.max = max(p.max, queued+size)
	n.stats.queueMax = max(n.stats.queueMax, p.max)
	p.carried += size
	p.free = max(p.free, n.now) + time.Duration(float64(size)/p.rate*float64(time.Second))
	return p.free - n.now, marked, true
}

// queued is how many bytes wait or are being sent.
func (p *simPipe) queued(now time.Duration) int {
	if p.free <= now {
		return 0
	}
	return int((p.free - now).Seconds() * p.rate)
}
