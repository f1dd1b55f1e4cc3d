package soft

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// simBulk is an endless stream of WRITEs from one device to another, the
// payload of most congestion tests.
type simBulk struct {
	w     *simWorld
	qp    verbs.QP
	wr    verbs.SendWR
	busy  int // work requests posted
	depth int
	bytes int // completed
	idle  bool
}

// newBulk connects two nodes and starts after a delay.
func newBulk(from, to *simNode, size, depth int, mtu verbs.MTU, after time.Duration) *simBulk {
	return newBulkOf(from, to, size, depth, mtu, after, func([2]verbs.QP) {})
}

// newBulkOf lets change see the queue pairs before they are connected.
func newBulkOf(from, to *simNode, size, depth int, mtu verbs.MTU, after time.Duration, change func([2]verbs.QP)) *simBulk {
	w := from.world
	b := &simBulk{w: w, depth: depth, idle: true}
	var qps [2]verbs.QP
	var mrs [2]verbs.MR
	for i, n := range []*simNode{from, to} {
		q, cq, mr := n.end(0, size, modelRemote, verbs.QPCap{MaxSendWR: depth, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
		qps[i], mrs[i] = q, mr
		if i == 0 {
			wcs := make([]verbs.WC, 16)
			n.loops[0].turn = append(n.loops[0].turn, func() bool { return b.turn(cq, wcs) })
		}
	}
	change(qps)
	for i, n := range []*simNode{to, from} {
		attr := verbs.ConnectAttr(qps[1-i].Num())
		attr.PathMTU = mtu
		attr.AH = verbs.AHAttr{DGID: verbs.GIDOf(n.addr), Port: 1, HopLimit: 64}
		require.NoError(w.t, verbs.Connect(qps[i], attr))
	}
	b.qp = qps[0]
	b.wr = verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{{Addr: mrs[0].Addr(), Length: uint32(size), LKey: mrs[0].LKey()}},
		RemoteAddr: mrs[1].Addr(), RKey: mrs[1].RKey(),
	}
	w.net.after(after, func() { b.idle = false })
	return b
}

func (b *simBulk) turn(cq verbs.CQ, wcs []verbs.WC) bool {
	n, err := cq.Poll(wcs)
	for _, wc := range wcs[:n] {
		if wc.Status != verbs.WCSuccess {
			b.w.t.Fatalf("bulk transfer: %v", wc.Status)
		}
		b.bytes += int(b.wr.SGList[0].Length)
	}
	b.busy -= n
	worked := n > 0
	for ; b.busy < b.depth && !b.idle && err == nil; b.busy++ {
		err = b.qp.PostSend(&b.wr)
		worked = true
	}
	if err != nil { // require would cost more than the transfer
		b.w.t.Fatalf("bulk transfer: %v", err)
	}
	return worked
}

// simDumbbell is pairs of hosts, left and right, with one line between them.
type simDumbbell struct {
	*simWorld
	left, right []*simNode
	line        *simPipe
}

// simLine describes the line.
type simLine struct {
	rate   float64 // bytes per second
	rtt    time.Duration
	queue  int // bytes
	markAt int
}

// gigabit is a common case: 1 Gbit/s, 200 µs, a queue of about 8 times the
// bandwidth-delay product, as a switch port has.
var gigabit = simLine{rate: 125e6, rtt: 200 * time.Microsecond, queue: 200_000}

func newDumbbell(t simTB, seed uint64, n int, line simLine, change ...func(*Config)) *simDumbbell {
	d := &simDumbbell{simWorld: newSimWorld(t, seed)}
	d.line = &simPipe{rate: line.rate, limit: line.queue, markAt: line.markAt}
	for i := range n {
		l := d.open("10.1.0."+string(rune('1'+i)), change...)
		r := d.open("10.2.0."+string(rune('1'+i)), change...)
		d.left, d.right = append(d.left, l), append(d.right, r)
		d.wire(d.net.route(l.addr, r.addr), d.net.route(r.addr, l.addr), line.rtt)
	}
	return d
}

// wire leads a route through the line, after an adapter ten times as fast
// that belongs to its sender alone, and gives the way back plenty.
func (d *simDumbbell) wire(way, back *simRoute, rtt time.Duration) {
	way.hops = []*simPipe{{rate: 10 * d.line.rate, limit: 16 << 20}, d.line}
	back.hops = []*simPipe{{rate: 10 * d.line.rate, limit: 16 << 20}}
	// Different hosts are never in step to the nanosecond.
	way.jitter, back.jitter = 2*time.Microsecond, 2*time.Microsecond
	way.delay, back.delay = rtt/2, rtt/2
}

// during runs for a time and says how many bytes of each counter went through
// in it, as a share of what the line can carry.
func (d *simDumbbell) during(long time.Duration, bytes ...*int) []float64 {
	before := make([]int, len(bytes))
	for i, b := range bytes {
		before[i] = *b
	}
	d.run(long, nil)
	shares := make([]float64, len(bytes))
	for i, b := range bytes {
		shares[i] = float64(*b-before[i]) / (d.line.rate * long.Seconds())
	}
	return shares
}

// jain is the fairness index of Jain, Chiu and Hawe: 1 if all are equal, 1/n if
// one has everything.
func jain(shares []float64) float64 {
	var sum, squares float64
	for _, s := range shares {
		sum += s
		squares += s * s
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(shares)) * squares)
}
